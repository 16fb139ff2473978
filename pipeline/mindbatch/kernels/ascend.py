"""The kernels on Ascend NPUs, from MindSpore's fused operators. Not run by this project: no NPU was at hand.

One flattened step is at once prefill and decode, so attention takes the path that holds for both: the
step's keys and values are written with ReshapeAndCache, then every token attends as a sequence of its own
with PagedAttention, which reads the cache by block table. PrefillAttention holds the FlashAttentionScore call
that would serve steps of one whole prompt; the engine does not use it until it can be measured.
"""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype
from mindspore.ops.operations.nn_ops import FlashAttentionScore

from mindbatch.errors import ConfigError
from mindbatch.kernels.interface import AttentionShape, constant
from mindbatch.kernels.reference import ReferenceKernels

NO_COMPRESSION = 2147483647  # FlashAttentionScore's pre_tokens for "everything before"


class RmsNorm(nn.Cell):
    """The fused RMS norm."""

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.operator = ops.RmsNorm(epsilon)

    def construct(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return self.operator(x, weight)[0]


class AddRmsNorm(nn.Cell):
    """(norm(x + residual), x + residual)."""

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.norm = RmsNorm(epsilon)

    def construct(self, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        total = x + residual
        return self.norm(total, weight, bias), total


class PagedAttention(nn.Cell):
    """Writes the step to the cache, then one query token per row of block tables."""

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__()
        self.queries = shape.heads * shape.head_dim
        self.keys = self.queries + shape.kv_heads * shape.head_dim
        self.write = ops.auto_generate.ReshapeAndCache()
        self.attend = ops.auto_generate.PagedAttention(shape.heads, shape.scale, shape.kv_heads)

    def construct(
        self,
        qkv: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        slots: Tensor,
        rows: Tensor,
        block_tables: Tensor,
        lengths: Tensor,
    ) -> Tensor:
        query, key = qkv[:, : self.queries], qkv[:, self.queries : self.keys]
        value = qkv[:, self.keys :]
        query = ops.depend(query, self.write(key, value, key_cache, value_cache, slots))
        tables = ops.gather(block_tables, rows, 0)
        return self.attend(query, key_cache, value_cache, tables, lengths)


class PrefillAttention(nn.Cell):
    """FlashAttentionScore over one whole prompt, [T, width] inputs, causal."""

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__()
        self.attend = FlashAttentionScore(
            head_num=shape.heads,
            scale_value=shape.scale,
            pre_tokens=shape.window or NO_COMPRESSION,
            next_tokens=0,
            input_layout="BSH",
            sparse_mode=4 if shape.window else 2,
        )
        self.mask = constant(np.triu(np.ones((2048, 2048)), 1), np.uint8)

    def construct(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = self.attend(query, key, value, None, None, None, self.mask, None)
        return ops.cast(output[3], mstype.float32)


class AscendKernels(ReferenceKernels):
    """Fused operators where Ascend has them; MindSpore's plain ones and their layouts elsewhere."""

    name = "ascend"
    device_target = "Ascend"

    def norm(self, epsilon: float, centred: bool) -> nn.Cell:
        return super().norm(epsilon, centred) if centred else RmsNorm(epsilon)

    def add_norm(self, epsilon: float, centred: bool) -> nn.Cell:
        return super().add_norm(epsilon, centred) if centred else AddRmsNorm(epsilon)

    def attention(self, shape: AttentionShape) -> nn.Cell:
        """See `Kernels.attention`; ConfigError for a sliding window, which the operator does not have."""
        if shape.window > 0:
            raise ConfigError(
                f"runtime.device_target=Ascend: PagedAttention has no sliding window (the model asks for "
                f"{shape.window} tokens); allowed: CPU for this model"
            )
        return PagedAttention(shape)

    def table_width(self, needed: int, maximum: int) -> int:
        return maximum
