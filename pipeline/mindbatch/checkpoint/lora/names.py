"""Names of the tensors of LoRA adapters: which module each is of, and what it is of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

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


class Role(Enum):
    """What a tensor is of its module."""

    A = "lora_A"
    B = "lora_B"
    BIAS = "bias"
    MAGNITUDE = "lora_magnitude_vector"
    WEIGHT = "weight"


TensorNames = Mapping[str, Mapping[Role, str]]
"""The names of the tensors of each module."""


@dataclass
class FoundModules:
    """modules: the names of the tensors of each; others: the tensors that are of none."""

    modules: dict[str, dict[Role, str]]
    others: list[str]
    faults: list[str]


def is_lora_name(name: str) -> bool:
    """Whether a tensor of a checkpoint belongs to an adapter."""
    return "lora_" in name.lower()


def find_modules(names: Iterable[str]) -> FoundModules:
    """Puts the tensors of each module together; a fault line for what lacks its other half, or is twice."""
    found = FoundModules({}, [], [])
    for name in names:
        match = _MATRIX.fullmatch(name.removeprefix(_PEFT))
        if match is None:
            found.others.append(name)
            continue
        roles = found.modules.setdefault(match[1], {})
        if roles.setdefault(Role(f"lora_{match[2].upper()}"), name) != name:
            found.faults.append(f"tensor {shown(name)}: module {shown(match[1])} has this matrix twice")
    for module, roles in [*found.modules.items()]:
        if len(roles) == 1:
            [only] = roles.values()
            del found.modules[module]
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
    """The weight of a module, by the name that the model has for it."""
    name = f"{module}.weight"
    return renames.get(name, name)
