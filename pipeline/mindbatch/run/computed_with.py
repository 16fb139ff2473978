"""Settings that decide the last bits of results: kept in the ledger, reported on a resume."""

from __future__ import annotations

from collections.abc import Iterator

from mindbatch.config.model_task import ModelTaskConfig, kept_weights
from mindbatch.io.amounts import counted
from mindbatch.ledger.ledger import Ledger
from mindbatch.ledger.part import ComputedWith
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.ledger.run_record import changes
from mindbatch.run.index import RowIndex

_SAME_BITS = {"avx512_vnni": "avx512", "avx512_bf16": "avx512"}
"""Instruction sets that come to the bits of another, in every type; AMX does so in float32 alone."""


def computed_with(config: ModelTaskConfig, kernels: str) -> ComputedWith:
    """Collects these settings of a session. kernels: see `LLM.kernels`."""
    device = config.runtime.device_target
    return {
        "device_target": device,
        "dtype": kept_weights(config.model, device),
        "model_parallel": config.parallel.model_parallel,
        "kernels": kernels,
    }


def differences(before: ComputedWith, now: ComputedWith) -> list[str]:
    """A line for each thing that differs and may decide bits."""
    return changes(*({**kind, "kernels": _adding_alike(kind)} for kind in (before, now)))


def _adding_alike(kind: ComputedWith) -> str:
    """The kernels, of those that come to the same bits the simplest."""
    names = str(kind.get("kernels")).split(", ")
    plain = {**_SAME_BITS, "amx": "avx512"} if kind.get("dtype") == "float32" else _SAME_BITS
    return ", ".join(sorted({plain.get(name, name) for name in names}))


def results_by_kind(index: RowIndex, ledger: Ledger) -> list[tuple[ComputedWith | None, int]]:
    """Counts the results by what they were computed with; None where that was not written down."""
    by_kind: dict[str, tuple[ComputedWith | None, int]] = {}
    for part, count in index.results_by_part().items():
        kind = ledger.part_computed_with(part)
        by_kind[repr(kind)] = kind, count + by_kind.get(repr(kind), (kind, 0))[1]
    return [*by_kind.values()]


def mixed(folder: RunFolder, index: RowIndex, ledger: Ledger) -> Iterator[str]:
    """A line if the rows of earlier sessions were computed otherwise than those of this one will be."""
    now = ledger.computed_with or {}
    others = [
        f"{counted(count, 'row')} before with {', '.join(changed)}"
        for kind, count in results_by_kind(index, ledger)
        if kind is not None and (changed := differences(kind, now))
    ]
    if others:
        yield (
            f"{folder.path}: not computed alike: {'; '.join(others)}; a few tokens may be other ones than in "
            "an unbroken run"
        )
