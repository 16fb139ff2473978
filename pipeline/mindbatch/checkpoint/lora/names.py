"""Names of the tensors of LoRA adapters: which weight of the model each pair of matrices belongs to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mindbatch.checkpoint.faults import shown

# base_model.model.MODULE.lora_A.weight (PEFT), MODULE.mindpet_delta_lora_a, .tk_delta_lora_a (MindFormers)
_PEFT = "base_model.model."
_MATRIX = re.compile(r"(.+)\.(?:(?:mindpet_delta_|tk_delta_)?lora_([ABab])(?:\.weight)?)")
_HEADS = re.compile(r"(^|\.)(score|classifier|classification_head|qa_outputs|v_head)\.")
_KINDS = {
    "lora_magnitude_vector": "DoRA",
    "lora_embedding_": "an adapted embedding",
    "modules_to_save": "a whole saved module",
    ".bias": "a bias",
}


class LoraPair(NamedTuple):
    """The names of A [rank, inputs] and B [outputs, rank], of which scaling * B @ A is added to a weight."""

    a: str
    b: str


@dataclass
class FoundPairs:
    """pairs: by the module that they adapt; others: the tensors that are no matrices of an adapter."""

    pairs: dict[str, LoraPair]
    others: list[str]
    faults: list[str]


def is_lora_name(name: str) -> bool:
    """Whether a tensor of a checkpoint belongs to an adapter."""
    return "lora_" in name.lower()


def find_pairs(names: Iterable[str]) -> FoundPairs:
    """Puts the matrices together; a fault line for each that lacks its other half, or is there twice."""
    halves: dict[str, dict[str, str]] = {}
    found = FoundPairs({}, [], [])
    for name in names:
        match = _MATRIX.fullmatch(name.removeprefix(_PEFT))
        if match is None:
            found.others.append(name)
            continue
        half = halves.setdefault(match[1], {})
        if half.setdefault(match[2].upper(), name) != name:
            found.faults.append(f"tensor {shown(name)}: module {shown(match[1])} has this matrix twice")
    for module, half in halves.items():
        if len(half) == 2:
            found.pairs[module] = LoraPair(half["A"], half["B"])
        else:
            ((_, only),) = half.items()
            found.faults.append(
                f"tensor {shown(only)}: its other half is missing; lora_A and lora_B go together"
            )
    return found


def unused_faults(names: Iterable[str]) -> list[str]:
    """A line for each tensor of an adapter that would not be used, saying what it most likely is."""
    return [
        f"tensor {shown(name)}: {_kind(name)}; only pairs of lora_A and lora_B are used" for name in names
    ]


def _kind(name: str) -> str:
    if _HEADS.search(name):
        return "a classification head, which generation has no place for"
    return next(
        (f"{kind} is not supported" for part, kind in _KINDS.items() if part in name), "not understood"
    )


def weight_of(module: str, renames: Mapping[str, str]) -> str:
    """The weight that the matrices of a module are added to."""
    name = f"{module}.weight"
    return renames.get(name, name)
