"""For `common.embeddings.rotary_pos_embedding`: ApplyRotaryPosEmb, from MindSpore's plain operators.

On Ascend that operator stays; only the slices of heads that are rotated in part are taken otherwise.
"""

from __future__ import annotations

from typing import Any

from mindspore import Tensor, nn, ops

INTERLEAVED = 3  # RotaryPosEmbMode: pairs of neighbours; the other one pairs the halves of a head


class ApplyRotary(nn.Cell):
    """Queries and keys [T, heads * size] rotated by cos, sin [T, size] (Su et al., 2021)."""

    def __init__(self, size: int, is_interleaved: bool) -> None:
        super().__init__(auto_prefix=False)
        self.size = size
        self.is_interleaved = is_interleaved

    def _turned(self, x: Tensor) -> Tensor:
        """Every pair (a, b) as (-b, a)."""
        half = self.size // 2
        if self.is_interleaved:
            pairs = x.reshape((x.shape[0], -1, half, 2))
            return ops.stack((-pairs[..., 1], pairs[..., 0]), -1).reshape(x.shape)
        return ops.cat((-x[..., half:], x[..., :half]), -1)

    def _rotate(self, flat: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = flat.reshape((flat.shape[0], -1, self.size))
        rotated = x * cos.expand_dims(1) + self._turned(x) * sin.expand_dims(1)
        return rotated.reshape(flat.shape)

    def construct(
        self, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, lengths: Tensor
    ) -> tuple[Tensor, Tensor]:
        return self._rotate(query, cos, sin), self._rotate(key, cos, sin)


class PartialRotary(nn.Cell):
    """A RotaryEmbedding that rotates the first `dim` numbers of each head, without StridedSlice."""

    def __init__(self, module: Any) -> None:
        super().__init__(auto_prefix=False)
        self.rotate = module.rotary_embedding_op
        self.head_dim, self.dim = module.kv_channels, module.dim

    def _parts(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """[T, heads * head_dim] -> [T, heads * dim], which is rotated, and the rest [T, heads, ...]."""
        by_head = flat.reshape((flat.shape[0], -1, self.head_dim))
        rotated, rest = ops.function.array_func.split_ext(by_head, (self.dim, self.head_dim - self.dim), -1)
        return rotated.reshape((flat.shape[0], -1)), rest

    def _joined(self, rotated: Tensor, rest: Tensor) -> Tensor:
        by_head = rotated.reshape((rest.shape[0], -1, self.dim))
        return ops.cat((by_head, rest), -1).reshape((rest.shape[0], -1))

    def construct(
        self, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, lengths: Tensor
    ) -> tuple[Tensor, Tensor]:
        query, query_rest = self._parts(query)
        key, key_rest = self._parts(key)
        query, key = self.rotate(query, key, cos, sin, lengths)
        return self._joined(query, query_rest), self._joined(key, key_rest)


def put_in_partial(attention: Any) -> None:
    """Replaces the RotaryEmbedding of an Attention, if it rotates a part of each head."""
    if attention.rotary_emb.rotary_percent < 1:
        attention.rotary_emb = PartialRotary(attention.rotary_emb)


def put_in(module: Any) -> None:
    """Replaces the operator of a RotaryEmbedding of any kind."""
    operator = module.rotary_embedding_op
    module.rotary_embedding_op = ApplyRotary(module.dim, operator.cos_format == INTERLEAVED)
