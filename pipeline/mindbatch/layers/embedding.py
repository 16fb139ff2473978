"""Token embeddings and heads over slices of the vocabulary, and tables that every rank has whole."""

from typing import Any

from mindbatch.kernels.operations.dense import adapted_embedding, all_gather, embedding, ids_from, table_rows
from mindbatch.layers.linear import Product, bias_of, reduced
from mindbatch.layers.rank import Module, Rank, Tokens, declared
from mindbatch.models.tensor_spec import Layout, Part, Sharding


class VocabularyMatrix(Module):
    """A matrix [vocab_size, width] of which each rank has some rows.

    norm, project: what follows the rows, or precedes the products of a head, in the types that have it.
    """

    norm: Module
    project: Module

    def __init__(self, source: str, vocab_size: int, width: int) -> None:
        self.part = Part(f"{source}.weight", vocab_size, width)
        self.weight = declared(self.part, sharding=Sharding.VOCABULARY, layout=Layout.PACKED)
        self.vocab_size, self.width = vocab_size, width


class TokenEmbedding(VocabularyMatrix):
    """ids [T] -> [T, width]. A rank gives zeros for ids that it does not have; the sum is the row."""

    def bind(self, name: str, rank: Rank) -> None:
        super().bind(name, rank)
        self.adapted = rank.weights.adapted.get(f"{name}.weight")
        self.shard = rank.shard
        self.first_id = rank.shard.rank * rank.weights.outputs[f"{name}.weight"]

    def forward(self, tokens: Tokens) -> Any:
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
        self,
        source: str,
        vocab_size: int,
        width: int,
        *,
        tied: bool = False,
        bias: bool = False,
    ) -> None:
        super().__init__(source, vocab_size, width)
        self.is_tied = tied
        if tied:
            self.weight = None
        self.bias = declared(bias_of(self.part), sharding=Sharding.VOCABULARY) if bias else None

    def bind(self, name: str, rank: Rank) -> None:
        """The rank's product; adapters have the head by its own name also where it is the embedding."""
        super().bind(name, rank)
        base = "embedding.weight" if self.is_tied else None
        self.product = Product(f"{name}.weight", rank, self.bias, base)
        self.shard = rank.shard

    def forward(self, x: Any, tokens: Tokens) -> Any:
        return self.product(x, tokens)

    def gathered(self, logits: Any) -> Any:
        """Gathers the ranks' parts of logits to all logits."""
        if self.shard.size == 1:
            return logits
        return all_gather(logits, shard=self.shard, total=self.vocab_size)


class Table(Module):
    """numbers [T] -> [T, width]: rows of a table that every rank has. first: the row of number 0."""

    def __init__(self, source: str, rows: int, width: int, first: int = 0) -> None:
        self.weight, self.first = declared(Part(f"{source}.weight", rows, width)), first

    def forward(self, numbers: Any) -> Any:
        numbers = ids_from(numbers, first=-self.first) if self.first else numbers
        return table_rows(numbers, self.weight)
