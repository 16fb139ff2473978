"""Declarations of names: rules between the tensors of two checkpoints of a model, and the rule of a name."""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from fnmatch import fnmatchcase
from functools import cache

from mindbatch.checkpoint.error_lines import did_you_mean, shown
from mindbatch.io.errors import CheckpointError

_LAYER, EXPERT = "{layer}", "{expert}"
_NUMBER = re.compile(r"\.(0|[1-9]\d{0,5})\.")


class Sections(Enum):
    ONE = ("all",)
    QKV = ("query", "key", "value")
    PAIR = ("gate", "up")


@dataclass(frozen=True)
class Form:
    """Tensors that hold a layer's outputs in a checkpoint: one per section, or one for all.

    names: names of the tensors, with {layer} for the number of the layer.
    grouped: True if a tensor of several sections has the rows of one key/value head after those of another,
        or alternating rows of a pair; False if it has one whole section after another.
    transposed: True if a matrix is [inputs, outputs] instead of [outputs, inputs].
    """

    names: tuple[str, ...]
    grouped: bool = False
    transposed: bool = False


@dataclass(frozen=True)
class Rule:
    """Elements in Hugging Face's form and the same in MindFormers'.

    is_stacked: True if the original tensors, with {expert} in their names, are each expert's, and one stored
    matrix has their transposes, gate and up side by side, one expert below another.
    """

    original: Form
    stored: Form
    sections: Sections = Sections.ONE
    is_stacked: bool = False

    def __post_init__(self) -> None:
        counts = (1, len(self.sections.value))
        assert all(len(form.names) in counts for form in (self.original, self.stored)), self
        assert not self.original.grouped, self
        assert not self.stored.grouped or len(self.stored.names) < len(self.sections.value), self


@dataclass(frozen=True)
class Heads:
    """Attention heads of a model and experts of a layer, which determine the sizes of fused sections."""

    heads: int
    kv_heads: int
    head_dim: int
    experts: int = 0

    def weights(self, sections: Sections) -> tuple[int, ...]:
        if sections is Sections.QKV:
            return self.heads, self.kv_heads, self.kv_heads
        return (1,) * len(sections.value)


@dataclass(frozen=True)
class Options:
    """The settings of a MindFormers model on which its parameters depend.

    qkv_concat: MindFormers' key for fused matrices; of Llama's it fuses gate and up as well.
    grouped: True if fused tensors are grouped, as in MindFormers 1.9; older releases joined their sections
        on each rank.
    num_layers: number of layers of the whole model, for a last layer with names of its own; None is enough to
        look names up.
    is_mcore: True for the names of its Mcore models, whose matrices are always fused.
    """

    qkv_concat: bool = False
    grouped: bool = True
    num_layers: int | None = None
    is_mcore: bool = False


@dataclass(frozen=True)
class Dialect:
    """Rules between the names of a model type in two checkpoints.

    unused: shell patterns of tensors that MindFormers has no parameter for.
    has_own_head: MindFormers never takes the token embedding for the head.
    """

    rules: tuple[Rule, ...]
    unused: tuple[str, ...] = ()
    has_own_head: bool = False


def unused_names(dialect: Dialect, names: Iterable[str]) -> set[str]:
    """Selects names of tensors that no model needs, which are left out."""
    return {name for name in names if any(fnmatchcase(name, pattern) for pattern in dialect.unused)}


def known_names(dialect: Dialect, names: Iterable[str], *, is_stored: bool) -> set[str]:
    """Selects the names that MindFormers has, or Hugging Face, for tensors that a model needs."""
    known = _rules_by_name(dialect, is_stored)
    return {name for name in names if name in known or _without_numbers(name)[0] in known}


def rule_for(dialect: Dialect, name: str, names_present: Collection[str], *, is_stored: bool) -> Rule:
    """Finds the rule of a tensor, for its layer.

    CheckpointError if there is none, or other tensors of the rule are missing.
    """
    known = _rules_by_name(dialect, is_stored)
    plain, layer, expert = (name, "", "") if name in known else _without_numbers(name)
    if plain not in known:
        side = "MindFormers" if is_stored else "Hugging Face"
        near = did_you_mean(plain, known).replace(_LAYER, layer).replace(EXPERT, expert)
        raise CheckpointError(f"tensor {shown(name)}: no {side} name of this model type{near}")
    rule = known[plain]
    rule = replace(rule, original=_filled(rule.original, layer), stored=_filled(rule.stored, layer))
    names = (rule.stored if is_stored else rule.original).names
    names = tuple(needed.replace(EXPERT, expert) for needed in names)
    if missing := [needed for needed in names if needed not in names_present]:
        raise CheckpointError(f"tensor {shown(name)}: goes with {', '.join(missing)}, which is missing")
    return rule


def _without_numbers(name: str) -> tuple[str, str, str]:
    """The name with {layer} for its first number and {expert} for a second one, and these numbers."""
    numbers = list(_NUMBER.finditer(name))[:2]
    for match, pattern in zip(numbers[::-1], (_LAYER, EXPERT)[: len(numbers)][::-1], strict=True):
        name = f"{name[: match.start(1)]}{pattern}{name[match.end(1) :]}"
    layer, expert = [*(match[1] for match in numbers), "", ""][:2]
    return name, layer, expert


@cache
def _rules_by_name(dialect: Dialect, is_stored: bool) -> dict[str, Rule]:
    return {
        name: rule for rule in dialect.rules for name in (rule.stored if is_stored else rule.original).names
    }


def _filled(form: Form, layer: str) -> Form:
    return replace(form, names=tuple(name.replace(_LAYER, layer) for name in form.names))
