"""manifest.json: what a run was made from, what came out of it, and how long it took."""

import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any, Literal

import orjson
import xxhash

from mindbatch.config.machine import versions
from mindbatch.config.model_task import ModelTaskConfig, kept_weights, slices_in_sums
from mindbatch.io.amounts import counted, per_second
from mindbatch.io.storage import Storage, write_whole
from mindbatch.kernels.native_library import arithmetic_of
from mindbatch.ledger.ledger import ComputedWith, Ledger
from mindbatch.ledger.run_folder import RESULT_NAMES, RunFolder
from mindbatch.ledger.run_record import RunRecord, changes, read_manifest
from mindbatch.run.batch_config import BatchConfig
from mindbatch.run.index import RowCounts, RowIndex

_ARITHMETIC = 4
"""Raised when the kernels come to other bits: tests/numerics/test_every_processor.py has those of now."""


def computed_with(config: ModelTaskConfig, kernels: str) -> ComputedWith:
    """Collects what decides the bits of a session's rows. kernels: see `LLM.kernels`.

    model_parallel is 1 where sums over the slices have the bits of one process; kernels are the classes of
    those that come to the same bits.
    """
    device = config.runtime.device_target
    dtype = kept_weights(config.model, device)
    return {
        "device_target": device,
        "dtype": dtype,
        "model_parallel": slices_in_sums(config),
        "kernels": arithmetic_of(kernels, dtype),
        "arithmetic": _ARITHMETIC,
    }


def results_by_kind(index: RowIndex, ledger: Ledger) -> list[tuple[ComputedWith, int]]:
    by_kind: dict[str, tuple[ComputedWith, int]] = {}
    for session, count in index.results_by_session().items():
        kind = ledger.computed_with_in(session)
        by_kind[repr(kind)] = kind, count + by_kind.get(repr(kind), (kind, 0))[1]
    return [*by_kind.values()]


def mixed(folder: RunFolder, index: RowIndex, ledger: Ledger) -> Iterator[str]:
    """Yields a line if the rows of earlier sessions were computed otherwise than those of this one will
    be."""
    others = [
        f"{counted(count, 'row')} before with {', '.join(changed)}"
        for kind, count in results_by_kind(index, ledger)
        if (changed := changes(kind, ledger.computed_with))
    ]
    if others:
        yield (
            f"{folder.path}: not computed alike: {'; '.join(others)}; a few tokens may be other ones than in "
            "an unbroken run"
        )


PACKAGES = ("mindbatch", "mindspore", "mindformers", "transformers", "tokenizers", "numpy")
ADAPTERS = "lora.adapters."
"""In a run record, before the name of an adapter in the field of its digest."""
_DIGESTS = ("weights", "model.config", "tokenizer", "assistant")
_TEMPLATE = "data.template"

Status = Literal["running", "complete", "interrupted"]
"""A process that is killed leaves "running"; whether it is so, the lock says."""


@dataclass(frozen=True)
class Session:
    """One process's share of a run. Those that were killed leave none.

    seconds: from the first step to the last, without loading the model.
    """

    started: str
    seconds: float = 0.0
    rows: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    generated_tokens: int = 0
    cache_waste: float = 0.0


def write_manifest(
    folder: RunFolder,
    config: BatchConfig,
    record: RunRecord,
    index: RowIndex,
    ledger: Ledger,
    status: Status,
    session: Session,
    results: Iterable[str],
    storage: Storage,
    upload: Mapping[str, Any] | None = None,
) -> None:
    """Writes the manifest anew, with the sessions of the one before it and this one, if it has run any row.

    results: the names of the result files that this run has written or is about to write, and not removed.
    upload: see `ResultUpload.record`.

    Raises StorageError: it cannot be written.
    """
    sessions = [*_earlier_sessions(folder), *([asdict(session)] if session.rows else [])]
    seconds, prompt, cached, generated = (
        sum(past[name] for past in sessions)
        for name in ("seconds", "prompt_tokens", "cached_prompt_tokens", "generated_tokens")
    )
    content = {
        "status": status,
        "command": record.command,
        "created": record.created,
        "date": record.date,
        "ended": None if status == "running" else now(),
        "rows": asdict(index.counts()),
        "results": sorted(results),
        "upload": upload,
        "tokens": {"prompt": prompt, "cached_prompt": cached, "generated": generated},
        "seconds": seconds,
        "generated_tokens_per_second": per_second(generated, seconds),
        "prefix_hit_rate": cached / prompt if prompt else 0.0,
        "fingerprint": record.fingerprint,
        "digests": _digests(record.fields),
        "dataset": record.dataset,
        "sources": record.sources,
        "computed_with": [{"rows": count, **kind} for kind, count in results_by_kind(index, ledger)],
        "settings": config.resolved_settings,
        "versions": {"python": platform.python_version()} | versions(PACKAGES),
        "sessions": sessions,
    }
    write_whole(folder.manifest, orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n", storage)


def record_upload(folder: RunFolder, upload: Mapping[str, Any], storage: Storage) -> None:
    """Replaces the record of the upload in a complete run's manifest. Raises StorageError."""
    content = read_manifest(folder) | {"upload": upload}
    write_whole(folder.manifest, orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n", storage)


def _digests(fields: Mapping[str, Any]) -> dict[str, str | None]:
    """Lists the digests of what results were made from; a chat template is one of the tokenizer's files."""
    template = fields.get(_TEMPLATE)
    digest = None if template is None else f"xxh3-128:{xxhash.xxh3_128_hexdigest(template.encode())}"
    adapters = {name: value for name, value in fields.items() if name.startswith(ADAPTERS)}
    return {name: fields[name] for name in _DIGESTS if name in fields} | {_TEMPLATE: digest} | adapters


def now() -> str:
    """Returns the time in UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def rows_of(folder: RunFolder) -> RowCounts:
    """Reads what has become of the rows as the manifest was written; zeros if there is none to be read."""
    match read_manifest(folder).get("rows"):
        case {"total": int(total), "done": int(done), "failed": int(failed)}:
            return RowCounts(total, done, failed)
    return RowCounts(0, 0, 0)


def written_results(folder: RunFolder) -> set[str]:
    """Returns the names of the result files that the run has written, as far as its manifest tells."""
    match read_manifest(folder):
        case {"results": [*names]}:
            return {name for name in names if name in RESULT_NAMES.values()}
    return set()


def _earlier_sessions(folder: RunFolder) -> list[dict[str, Any]]:
    """Reads the sessions of the manifest; one that cannot be read is only a loss of statistics."""
    try:
        return [asdict(Session(**session)) for session in read_manifest(folder).get("sessions", [])]
    except TypeError:
        return []
