"""Names of the tensors of LoRA adapters: the module of each, and its role there."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from mindbatch.checkpoint.error_lines import shown

# base_model.model.MODULE.lora_A.weight (PEFT), MODULE.mindpet_delta_lora_a, .tk_delta_lora_a (MindFormers)
_PEFT = "base_model.model."
_HEADS = re.compile(r"(^|\.)(score|classifier|classification_head|qa_outputs|v_head)\.")
_OPTIMIZER = ("adam_m.", "adam_v.", "accu_grads.")
_COUNTERS = frozenset({
    "batch_num", "beta1_power", "beta2_power", "current_iterator_step", "epoch_num", "global_batch_size",
    "global_step", "last_overflow_iterator_step", "learning_rate", "loss_scale", "scale_sense", "step_num",
})  # fmt: skip
_VOCABULARY = frozenset({"embed_tokens", "wte", "tok_embeddings", "word_embeddings", "lm_head"})


class Role(Enum):
    """Role of a tensor in its module. WEIGHT: the full weight; BASE: the weight below adapted matrices."""

    A = "lora_A"
    B = "lora_B"
    BIAS = "bias"
    MAGNITUDE = "lora_magnitude_vector"
    WEIGHT = "weight"
    BASE = "base_layer.weight"


_ROLES = (
    (re.compile(r"(?:mindpet_delta_|tk_delta_)?lora_[Aa](?:\.weight)?"), Role.A),
    (re.compile(r"(?:mindpet_delta_|tk_delta_)?lora_[Bb](?:\.weight)?"), Role.B),
    (re.compile(r"lora_embedding_A(?:\.weight)?"), Role.A),
    (re.compile(r"lora_embedding_B(?:\.weight)?"), Role.B),
    (re.compile(r"lora_B\.bias"), Role.BIAS),
    (re.compile(r"lora_magnitude_vector(?:\.weight)?"), Role.MAGNITUDE),
    (re.compile(r"base_layer\.weight"), Role.BASE),
    (re.compile(r"(?:modules_to_save\.)?weight"), Role.WEIGHT),
    (re.compile(r"(?:modules_to_save\.)?bias"), Role.BIAS),
)
_MAX_PARTS = 2
"""Dots of what follows the module's name, and one more."""


@dataclass
class FoundModules:
    """Tensors of an adapter by module.

    modules: names of the tensors of each module, by role.
    embeddings: modules whose inputs are tokens.
    others: tensors that belong to no module.
    """

    modules: dict[str, dict[Role, str]] = field(default_factory=dict)
    embeddings: set[str] = field(default_factory=set)
    others: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def is_lora_name(name: str) -> bool:
    return "lora_" in name.lower()


def is_of_training(name: str) -> bool:
    """True if a tensor of a checkpoint is the optimizer's, or counts the steps of the training."""
    return name.startswith(_OPTIMIZER) or name in _COUNTERS


def is_vocabulary(module: str) -> bool:
    """True if a module's name is that of the token embedding or the head."""
    return module.rpartition(".")[2] in _VOCABULARY


def is_head(module: str) -> bool:
    return module.rpartition(".")[2] == "lm_head"


def find_modules(names: Iterable[str]) -> FoundModules:
    """Groups tensors by module; lists errors of matrices without their other half, and of duplicates."""
    found_modules = FoundModules()
    for name in names:
        parsed = _parsed(name)
        if parsed is None:
            found_modules.others.append(name)
            continue
        module, role = parsed
        if "lora_embedding_" in name:
            found_modules.embeddings.add(module)
        roles = found_modules.modules.setdefault(module, {})
        if roles.setdefault(role, name) != name:
            noun = "matrix" if role in (Role.A, Role.B) else "tensor"
            found_modules.errors.append(f"tensor {shown(name)}: module {shown(module)} has this {noun} twice")
    for module, roles in [*found_modules.modules.items()]:
        if errors := [*_half_errors(module, roles)]:
            del found_modules.modules[module]
            found_modules.errors += errors
    return found_modules


def _parsed(name: str) -> tuple[str, Role] | None:
    """Returns module and role of a tensor; None for whole modules other than head and embedding."""
    parts = name.removeprefix(_PEFT).split(".")
    for count in range(min(_MAX_PARTS, len(parts) - 1), 0, -1):
        module, end = ".".join(parts[:-count]), ".".join(parts[-count:])
        role = next((role for pattern, role in _ROLES if pattern.fullmatch(end)), None)
        is_whole = role is not None and "lora" not in end
        if role is not None and not (is_whole and not is_vocabulary(module)):
            return module, role
    return None


def _half_errors(module: str, roles: Mapping[Role, str]) -> Iterator[str]:
    """Checks that a module has both matrices, or a full weight and nothing else."""
    is_whole, halves = Role.WEIGHT in roles, [roles[role] for role in (Role.A, Role.B) if role in roles]
    if len(halves) == 1:
        yield f"tensor {shown(halves[0])}: its other half is missing; lora_A and lora_B go together"
    elif is_whole and halves:
        yield f"tensor {shown(roles[Role.WEIGHT])}: module {shown(module)} has matrices as well"
    elif not halves and not is_whole:
        yield from (
            f"tensor {shown(name)}: module {shown(module)} has no lora_A and lora_B"
            for name in roles.values()
        )


def unused_errors(names: Iterable[str]) -> list[str]:
    """Lists tensors of an adapter that would not be used, each with its likely meaning."""
    return [f"tensor {shown(name)}: {_kind(name)}" for name in names]


def _kind(name: str) -> str:
    if _HEADS.search(name):
        return "a classification head, which generation does not use"
    if "modules_to_save" in name:
        return "a whole saved module is supported for lm_head and embed_tokens alone"
    if not is_lora_name(name):
        return (
            "a weight of the model itself; used are the matrices of an adapter alone "
            "(tools/transform_ckpt_lora.py merges a checkpoint of both)"
        )
    return (
        "not understood; used are the lora_A and lora_B of a module with their bias and "
        "lora_magnitude_vector, and whole weights of lm_head and embed_tokens"
    )
