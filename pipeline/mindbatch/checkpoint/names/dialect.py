"""What a declaration of names says: rules between tensors of two checkpoints of a model, as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum


class Sections(Enum):
    """What the outputs of a layer consist of, in order."""

    ONE = ("all",)
    QKV = ("query", "key", "value")
    PAIR = ("gate", "up")


class Order(Enum):
    """How sections follow each other in one tensor.

    GROUPED: all that belongs to one key/value head, then the next; of a pair, row by row in turn.
    """

    JOINED = "joined"
    GROUPED = "grouped"


@dataclass(frozen=True)
class Form:
    """How a checkpoint holds the outputs of a layer: one tensor a section, or one for all.

    names: with {layer} for the number of the layer.
    transposed: a matrix is [inputs, outputs] instead of [outputs, inputs].
    """

    names: tuple[str, ...]
    order: Order = Order.JOINED
    transposed: bool = False


@dataclass(frozen=True)
class Rule:
    """The same elements in Hugging Face's form and in MindFormers'."""

    original: Form
    stored: Form
    sections: Sections = Sections.ONE

    def __post_init__(self) -> None:
        count = len(self.sections.value)
        for form in (self.original, self.stored):
            if len(form.names) not in (1, count):
                raise ValueError(f"{form.names}: must be 1 name or {count}")
        if self.original.order is not Order.JOINED:
            raise ValueError(f"{self.original.names}: only MindFormers' form can be grouped")


@dataclass(frozen=True)
class Heads:
    """Attention heads of a whole model, from which the sizes of fused sections follow."""

    heads: int
    kv_heads: int
    head_dim: int

    def weights(self, sections: Sections) -> tuple[int, ...]:
        """Relative sizes of the sections."""
        if sections is Sections.QKV:
            return self.heads, self.kv_heads, self.kv_heads
        return (1,) * len(sections.value)


@dataclass(frozen=True)
class Options:
    """The settings of a MindFormers model on which its parameters depend.

    qkv_concat, mlp_concat: as MindFormers calls them; Llama has the first one alone, which means both.
    grouped: fused tensors are GROUPED, as in MindFormers 1.9; older releases joined them on each rank.
    """

    qkv_concat: bool = False
    mlp_concat: bool = True
    grouped: bool = True

    @property
    def order(self) -> Order:
        """Of fused tensors."""
        return Order.GROUPED if self.grouped else Order.JOINED


@dataclass(frozen=True)
class Dialect:
    """All rules of a model type. unused: shell patterns of tensors that MindFormers has no parameter for."""

    rules: tuple[Rule, ...]
    unused: tuple[str, ...] = ()


def renamed(pairs: Iterable[tuple[str, str]], ends: Sequence[str] = ("weight",)) -> list[Rule]:
    """Rules for tensors that change their names only; every name gets each of the ends."""
    return [
        Rule(Form((f"{original}.{end}",)), Form((f"{stored}.{end}",)))
        for original, stored in pairs
        for end in ends
    ]
