"""Layers as they own their parameters: names in the checkpoint, what is joined, how ranks divide it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mindbatch.models.tensor_spec import Layout, Part, Sharding, TensorSpec


class Module:
    """A node of a model's tree; its children are its attributes and the items of its lists.

    A parameter's name is the path to it, of attributes and numbers.
    """

    def parameters(self, name: str = "") -> Iterator[TensorSpec]:
        """All below the node of this name."""
        for key, child in vars(self).items():
            path = f"{name}.{key}" if name else key
            if isinstance(child, Module):
                yield from child.parameters(path)
            elif isinstance(child, list):
                for number, each in enumerate(child):
                    yield from each.parameters(f"{path}.{number}")


class Linear(Module):
    """x [T, inputs] -> [T, outputs]: a packed matrix that is joined of parts, and a bias where it has one."""

    sharding = Sharding.REPLICATED

    def __init__(self, *parts: Part, bias: bool = False) -> None:
        self.parts, self.has_bias = parts, bias

    def parameters(self, name: str = "") -> Iterator[TensorSpec]:
        """The matrix, and the bias, whose sources end in `bias`.

        A bias follows the outputs; where the inputs are divided it is added once, to the sum.
        """
        yield TensorSpec(f"{name}.weight", self.parts, self.sharding, Layout.PACKED)
        if self.has_bias:
            sharding = Sharding.OUTPUTS if self.sharding is Sharding.OUTPUTS else Sharding.REPLICATED
            yield TensorSpec(f"{name}.bias", tuple(map(_bias_of, self.parts)), sharding)


def _bias_of(part: Part) -> Part:
    source = f"{part.source.removesuffix('weight')}bias"
    return replace(part, source=source, inputs=None, transposed=False)


class ColumnLinear(Linear):
    """Each rank has some outputs."""

    sharding = Sharding.OUTPUTS


class RowLinear(Linear):
    """Each rank has some inputs, and the ranks' products are added."""

    sharding = Sharding.INPUTS


class ReplicatedLinear(Linear):
    """Every rank has all of it."""


class TokenEmbedding(Module):
    """ids [T] -> [T, width]; each rank has a part of the vocabulary.

    norm, project: what follows the rows, or precedes the products of a head, in the types that have it.
    """

    norm: Module
    project: Module

    def __init__(self, source: str, vocab_size: int, width: int) -> None:
        self.part = Part(f"{source}.weight", vocab_size, width)

    def parameters(self, name: str = "") -> Iterator[TensorSpec]:
        """The matrix, and those of what follows the rows."""
        yield TensorSpec(f"{name}.weight", (self.part,), Sharding.VOCABULARY, Layout.PACKED)
        yield from super().parameters(name)


class Head(TokenEmbedding):
    """[T, width] -> logits [T, vocab_size]. tied: by the token embedding, without a matrix of its own."""

    def __init__(
        self, source: str, vocab_size: int, width: int, *, tied: bool = False, bias: bool = False
    ) -> None:
        super().__init__(source, vocab_size, width)
        self.is_tied, self.has_bias = tied, bias

    def parameters(self, name: str = "") -> Iterator[TensorSpec]:
        """The matrix but for a tied head, and the bias where it has one."""
        own = super().parameters(name)
        if self.is_tied:
            next(own)
        yield from own
        if self.has_bias:
            yield TensorSpec(f"{name}.bias", (_bias_of(self.part),), Sharding.VOCABULARY)


class RmsNorm(Module):
    """x [T, width] -> x / rms(x) * weight."""

    vectors: tuple[str, ...] = ("weight",)

    def __init__(self, source: str, width: int) -> None:
        self.source, self.width = source, width

    def parameters(self, name: str = "") -> Iterator[TensorSpec]:
        """Its vectors, which every rank has."""
        for vector in self.vectors:
            yield TensorSpec(f"{name}.{vector}", (Part(f"{self.source}.{vector}", self.width),))


class LayerNorm(RmsNorm):
    """x [T, width] -> (x - mean(x)) / std(x) * weight + bias."""

    vectors = ("weight", "bias")


class AllHeadsNorm(Module):
    """An RMS norm over all heads together, of which a rank has the part that its heads have."""

    def __init__(self, source: str, heads: int, head_dim: int, *, is_shared: bool = False) -> None:
        self.part = Part(f"{source}.weight", heads * head_dim, unit=head_dim, is_shared=is_shared)

    def parameters(self, name: str = "") -> Iterator[TensorSpec]:
        """The vector."""
        yield TensorSpec(f"{name}.weight", (self.part,), Sharding.OUTPUTS)


class Table(Module):
    """numbers [T] -> [T, width]: rows of a table that every rank has."""

    def __init__(self, source: str, rows: int, width: int) -> None:
        self.part = Part(f"{source}.weight", rows, width)

    def parameters(self, name: str = "") -> Iterator[TensorSpec]:
        """The table."""
        yield TensorSpec(f"{name}.weight", (self.part,))


class Vectors(Table):
    """A table that is no layer by itself, and has the name of its place alone."""

    def parameters(self, name: str = "") -> Iterator[TensorSpec]:
        """The table."""
        yield TensorSpec(name, (self.part,))


class SplitLinear(Linear):
    """A matrix of each head that two layers take apart, each head's first `split` outputs and the rest."""

    sharding = Sharding.OUTPUTS

    def __init__(self, part: Part, split: int) -> None:
        super().__init__(part)
        self.split = split

    def parameters(self, name: str = "") -> Iterator[TensorSpec]:
        """The one matrix of the checkpoint."""
        yield TensorSpec(f"{name}.weight", self.parts, self.sharding, Layout.PACKED, split=self.split)


class Router(Module):
    """x [T, width] -> which experts compute each row. In float32: rounding may change which are chosen.

    source, correction: the whole names of its tensors; correction is added when experts are chosen.
    """

    def __init__(self, source: str, experts: int, width: int, correction: str | None = None) -> None:
        self.parts = {"weight": Part(source, experts, width)}
        if correction is not None:
            self.parts["correction"] = Part(correction, experts)

    def parameters(self, name: str = "") -> Iterator[TensorSpec]:
        """The matrix, and the correction where it has one."""
        for key, part in self.parts.items():
            yield TensorSpec(f"{name}.{key}", (part,), layout=Layout.FLOAT32)


class ExpertLinears(Linear):
    """A matrix of each of several experts, packed one after another; each rank has a slice of every one."""

    def __init__(self, *parts: Part, experts: int, sharding: Sharding) -> None:
        super().__init__(*parts)
        self.experts, self.sharding = experts, sharding

    def parameters(self, name: str = "") -> Iterator[TensorSpec]:
        """The stack of matrices."""
        yield TensorSpec(f"{name}.weight", self.parts, self.sharding, Layout.PACKED, self.experts)
