"""Layers of each token by itself: linear layers, norms, token embeddings and heads, divided over ranks."""

from dataclasses import replace

from mindbatch.architecture.tensor_spec import Layout, Part, Sharding
from mindbatch.kernels.arrays import KernelParameter
from mindbatch.kernels.operations.attention import head_products
from mindbatch.kernels.operations.dense import (
    adapted_embedding,
    adapted_products,
    adapted_sum,
    all_gather,
    all_reduce,
    biased,
    embedding,
    group_norm,
    ids_from,
    linear,
    norm,
    table_rows,
)
from mindbatch.kernels.shapes import HeadProductsShape
from mindbatch.layers.rank import Module, ModuleParameter, Rank, Tensor, Tokens, declared
from mindbatch.parallel.topology import WHOLE, TensorSlice


class Product:
    """x W^T + b with a rank's part of a matrix, plus what the adapter of each token adds.

    base: name of the parameter that holds the matrix, if not `name` (a head that is the token embedding).
    over: the ranks that divide its inputs. Their products are summed; what follows is computed of the sum,
        so that it is the same on any number of ranks.
    """

    def __init__(
        self,
        name: str,
        rank: Rank,
        bias: ModuleParameter | None,
        base: str | None = None,
        over: TensorSlice = WHOLE,
    ) -> None:
        matrix = base or name
        self.weight, self.outputs = rank.weights.parameters[matrix], rank.weights.outputs[matrix]
        self.bias, self.over = bias, over
        self.adapted = rank.weights.adapted.get(name)

    def __call__(self, x: Tensor, tokens: Tokens) -> Tensor:
        if self.adapted is not None:
            shape, stored = self.adapted.shape, (tokens.adapters, *self.adapted.stored)
            products = adapted_products(x, self.weight, *stored, outputs=self.outputs, shape=shape)
            sums = (reduced(product, self.over) for product in products)
            return adapted_sum(*sums, self.bias, *stored, shape=shape)
        if self.over.size == 1:
            return linear(x, self.weight, self.bias, outputs=self.outputs)
        y = reduced(linear(x, self.weight, None, outputs=self.outputs), self.over)
        return y if self.bias is None else biased(y, self.bias)


class Linear(Module):
    """x [T, inputs] -> [T, outputs] by a packed matrix, joined of parts, with or without a bias."""

    sharding = Sharding.REPLICATED

    def __init__(self, *parts: Part, bias: bool = False) -> None:
        self.weight = declared(*parts, sharding=self.sharding, layout=Layout.PACKED)
        self.bias: ModuleParameter | None = None
        if bias:  # It follows the outputs; where the inputs are divided it is added once, to the sum.
            sharding = Sharding.OUTPUTS if self.sharding is Sharding.OUTPUTS else Sharding.REPLICATED
            self.bias = declared(*map(bias_of, parts), sharding=sharding)

    def bind(self, name: str, rank: Rank) -> None:
        super().bind(name, rank)
        over = rank.shard if self.sharding is Sharding.INPUTS else WHOLE
        self.product = Product(f"{name}.weight", rank, self.bias, over=over)

    def forward(self, x: Tensor, tokens: Tokens) -> Tensor:
        return self.product(x, tokens)


def bias_of(part: Part) -> Part:
    """Returns the bias beside a matrix, or beside a part of one."""
    source = f"{part.source.removesuffix('weight')}bias"
    return replace(part, source=source, inputs=None, transposed=False)


class ColumnLinear(Linear):
    """Each rank has some outputs."""

    sharding = Sharding.OUTPUTS


class RowLinear(Linear):
    """Each rank has some inputs; the ranks' products are summed."""

    sharding = Sharding.INPUTS


def reduced(x: Tensor, shard: TensorSlice) -> Tensor:
    return x if shard.size == 1 else all_reduce(x, shard=shard)


class ReplicatedLinear(Linear):
    """Every rank has all of it."""


class SplitLinear(Linear):
    """A matrix whose heads are used in two parts: their first outputs, transposed, and the rest."""

    sharding = Sharding.OUTPUTS

    def __init__(self, part: Part, split: int) -> None:
        self.part, self.split = part, split
        self.weight = declared(part, sharding=self.sharding, layout=Layout.PACKED, split=split)

    def bind(self, name: str, rank: Rank) -> None:
        """Takes the two stacks that the matrix is loaded into."""
        part = self.part
        parameters = rank.weights.parameters
        self.into, self.out_of = parameters[f"{name}.absorb"], parameters[f"{name}.expand"]
        self.heads = rank.weights.outputs[f"{name}.weight"] // part.unit
        self.inputs, self.rest = part.inputs or 1, part.unit - self.split

    def absorbed(self, x: Tensor) -> Tensor:
        """x [T, >= heads * split] -> [T, heads * inputs] by the first part of each head."""
        shape = HeadProductsShape(self.heads, self.split, 0, self.split, self.inputs)
        return head_products(x, self.into, shape=shape)

    def expanded(self, x: Tensor, width: int, first: int) -> Tensor:
        """x [T, heads * width] -> [T, heads * rest] by the second part; a head's inputs begin at `first`."""
        shape = HeadProductsShape(self.heads, width, first, self.inputs, self.rest)
        return head_products(x, self.out_of, shape=shape)


class VocabularyMatrix(Module):
    """A matrix [vocab_size, width] of which each rank has some rows."""

    norm: Module
    project: Module
    """Set by the types in which a norm or a matrix follows the embedding, or precedes the head."""

    def __init__(self, source: str, vocab_size: int, width: int) -> None:
        self.part = Part(f"{source}.weight", vocab_size, width)
        self.weight = declared(self.part, sharding=Sharding.VOCABULARY, layout=Layout.PACKED)
        self.vocab_size, self.width = vocab_size, width


class TokenEmbedding(VocabularyMatrix):
    """ids [T] -> [T, width]. A rank gives zeros for the ids of other ranks, and the rows are summed."""

    def bind(self, name: str, rank: Rank) -> None:
        super().bind(name, rank)
        self.adapted = rank.weights.adapted.get(f"{name}.weight")
        self.shard = rank.shard
        self.first_id = rank.shard.rank * rank.weights.outputs[f"{name}.weight"]

    def forward(self, tokens: Tokens) -> Tensor:
        ids = ids_from(tokens.ids, first=self.first_id) if self.first_id else tokens.ids
        if self.adapted is None:
            rows = embedding(ids, self.weight, width=self.width)
        else:
            stored = (tokens.adapters, *self.adapted.stored)
            rows = adapted_embedding(ids, self.weight, *stored, shape=self.adapted.shape)
        return reduced(rows, self.shard)


class Head(VocabularyMatrix):
    """[T, width] -> logits [T, vocab_size], all of them on every rank.

    tied: by the token embedding, without a matrix of its own.
    """

    def __init__(
        self, source: str, vocab_size: int, width: int, *, tied: bool = False, bias: bool = False
    ) -> None:
        super().__init__(source, vocab_size, width)
        self.is_tied = tied
        if tied:
            self.weight = None
        self.bias = declared(bias_of(self.part), sharding=Sharding.VOCABULARY) if bias else None

    def bind(self, name: str, rank: Rank) -> None:
        """Takes the rank's product. Adapters name the head even where its matrix is the embedding."""
        super().bind(name, rank)
        base = "embedding.weight" if self.is_tied else None
        self.product = Product(f"{name}.weight", rank, self.bias, base)
        self.shard = rank.shard

    def forward(self, x: Tensor, tokens: Tokens) -> Tensor:
        return self.product(x, tokens)

    def gathered(self, logits: Tensor) -> Tensor:
        if self.shard.size == 1:
            return logits
        return all_gather(logits, shard=self.shard, total=self.vocab_size)


class Table(Module):
    """numbers [T] -> [T, width] from a table that every rank has. first: the row of number 0."""

    def __init__(self, source: str, rows: int, width: int, first: int = 0) -> None:
        self.weight, self.first = declared(Part(f"{source}.weight", rows, width)), first

    def forward(self, numbers: Tensor) -> Tensor:
        numbers = ids_from(numbers, first=-self.first) if self.first else numbers
        return table_rows(numbers, self.weight)


class RmsNorm(Module):
    """x [T, width] -> x / rms(x) * (offset + weight)."""

    is_centred = False
    has_bias = False

    def __init__(self, source: str, width: int, epsilon: float, offset: float = 0.0) -> None:
        self.width, self.epsilon, self.offset = width, epsilon, offset
        self.weight = declared(Part(f"{source}.weight", width))
        self.bias = declared(Part(f"{source}.bias", width)) if self.has_bias else None

    def bind(self, name: str, rank: Rank) -> None:
        """Adds the offset here, once, and in float32, as the model itself computes it.

        Half precision would lose what the weight adds to the offset.
        """
        super().bind(name, rank)
        if self.offset:
            self.weight = rank.kernels.add_offset(self.weight, self.offset)

    def forward(self, x: Tensor) -> Tensor:
        return norm(x, self.weight, self.bias, epsilon=self.epsilon, centred=self.is_centred)


class GroupNorm(RmsNorm):
    """Norms each group of `width` numbers of a row by itself."""

    def forward(self, x: Tensor) -> Tensor:
        return group_norm(x, self.weight, epsilon=self.epsilon)


class UnitNorm(Module):
    """x / rms(x), as a norm whose weights are 1."""

    weight: KernelParameter

    def __init__(self, width: int) -> None:
        self.width = width

    def bind(self, name: str, rank: Rank) -> None:
        self.weight = rank.kernels.add_offset(rank.kernels.zeros(self.width), 1.0)


class LayerNorm(RmsNorm):
    """x [T, width] -> (x - mean(x)) / std(x) * weight + bias."""

    is_centred = True
    has_bias = True


class PlainLayerNorm(RmsNorm):
    """Layer norm without a bias."""

    is_centred = True

    def bind(self, name: str, rank: Rank) -> None:
        """Takes the weight, and a bias of zeros: the kernels take a norm with a bias for a centred one."""
        super().bind(name, rank)
        self.bias = rank.kernels.zeros(self.width)


class AllHeadsNorm(Module):
    """An RMS norm over all heads together; a rank has the weights of its own heads."""

    def __init__(self, source: str, heads: int, head_dim: int, *, is_shared: bool = False) -> None:
        part = Part(f"{source}.weight", heads * head_dim, unit=head_dim, is_shared=is_shared)
        self.weight = declared(part, sharding=Sharding.OUTPUTS)


Norm = RmsNorm | UnitNorm | AllHeadsNorm
"""Norms of query and key, whose weights `Rotation` takes."""
