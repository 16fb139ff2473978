"""Linear layers: how their matrices are joined and divided over ranks, and the products of a rank."""

from dataclasses import replace
from typing import Any

from mindbatch.kernels.operations.attention import head_products
from mindbatch.kernels.operations.dense import adapted_linear, all_reduce, linear
from mindbatch.kernels.shapes import HeadProductsShape
from mindbatch.layers.rank import Module, Rank, Tokens, declared
from mindbatch.models.tensor_spec import Layout, Part, Sharding


class Product:
    """x W^T + b with a rank's part of a matrix, and of each token what its adapter adds to it.

    base: the matrix's name where it is another's, too (a head that is the token embedding).
    """

    def __init__(self, name: str, rank: Rank, bias: Any, base: str | None = None) -> None:
        self.weight, self.outputs = rank.weights.get(base or name), rank.weights.outputs[base or name]
        self.bias = bias
        self.adapted = rank.weights.adapted.get(name)

    def __call__(self, x: Any, tokens: Tokens) -> Any:
        if self.adapted is None:
            return linear(x, self.weight, self.bias, outputs=self.outputs)
        inputs = (x, self.weight, self.bias, tokens.adapters, *self.adapted.stored)
        return adapted_linear(*inputs, outputs=self.outputs, shape=self.adapted.shape)


class Linear(Module):
    """x [T, inputs] -> [T, outputs]: a packed matrix that is joined of parts, and a bias where it has one."""

    sharding = Sharding.REPLICATED

    def __init__(self, *parts: Part, bias: bool = False) -> None:
        self.weight = declared(*parts, sharding=self.sharding, layout=Layout.PACKED)
        self.bias = None
        if bias:  # It follows the outputs; where the inputs are divided it is added once, to the sum.
            sharding = Sharding.OUTPUTS if self.sharding is Sharding.OUTPUTS else Sharding.REPLICATED
            self.bias = declared(*map(bias_of, parts), sharding=sharding)

    def bind(self, name: str, rank: Rank) -> None:
        super().bind(name, rank)
        self.product = Product(f"{name}.weight", rank, self.bias)

    def forward(self, x: Any, tokens: Tokens) -> Any:
        return self.product(x, tokens)


def bias_of(part: Part) -> Part:
    """The vector beside a matrix, or beside a part of it."""
    source = f"{part.source.removesuffix('weight')}bias"
    return replace(part, source=source, inputs=None, transposed=False)


class ColumnLinear(Linear):
    """Each rank has some outputs."""

    sharding = Sharding.OUTPUTS


class RowLinear(Linear):
    """Each rank has some inputs, and the ranks' products are added, one of them with the bias."""

    sharding = Sharding.INPUTS

    def bind(self, name: str, rank: Rank) -> None:
        super().bind(name, rank)
        self.shard = rank.shard
        if rank.shard.rank > 0:
            self.product.bias = None

    def forward(self, x: Any, tokens: Tokens) -> Any:
        return reduced(self.product(x, tokens), self.shard)


def reduced(x: Any, shard: Any) -> Any:
    """The sum over the ranks of a slice."""
    return x if shard.size == 1 else all_reduce(x, shard=shard)


class ReplicatedLinear(Linear):
    """Every rank has all of it."""


class SplitLinear(Linear):
    """A matrix of each head that is used in two parts: its first outputs, transposed, and the rest."""

    sharding = Sharding.OUTPUTS

    def __init__(self, part: Part, split: int) -> None:
        self.part, self.split = part, split
        self.weight = declared(part, sharding=self.sharding, layout=Layout.PACKED, split=split)

    def bind(self, name: str, rank: Rank) -> None:
        """The two stacks, in which the matrix is loaded."""
        part = self.part
        self.into, self.out_of = (rank.weights.get(f"{name}.{which}") for which in ("absorb", "expand"))
        self.heads = rank.weights.outputs[f"{name}.weight"] // part.unit
        self.inputs, self.rest = part.inputs or 1, part.unit - self.split

    def absorbed(self, x: Any) -> Any:
        """x [T, >= heads * split], of each head -> what it is of the inputs, [T, heads * inputs]."""
        shape = HeadProductsShape(self.heads, self.split, 0, self.split, self.inputs)
        return head_products(x, self.into, shape=shape)

    def expanded(self, x: Any, width: int, first: int) -> Any:
        """x [T, heads * width], of which each head's inputs begin at `first` -> [T, heads * rest]."""
        shape = HeadProductsShape(self.heads, width, first, self.inputs, self.rest)
        return head_products(x, self.out_of, shape=shape)
