"""The set of kernels on Ascend: which cell computes what, for each kind of step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mindspore
from mindspore import nn

from mindbatch.kernels.arrays import Array, aligned_zeros
from mindbatch.kernels.ascend.alibi import AlibiAttention, widened
from mindbatch.kernels.ascend.attention import (
    AscendCacheWriter,
    CachedAttention,
    PlainAttention,
    PromptAttention,
    is_plain,
)
from mindbatch.kernels.ascend.experts import Experts
from mindbatch.kernels.ascend.graphs import AdaptedAscendGraph, AdaptedAscendHead, AscendGraph, AscendHead
from mindbatch.kernels.ascend.limits import flash_is_legal
from mindbatch.kernels.ascend.operators import (
    Activation,
    AddLayerNorm,
    AddRmsNorm,
    LayerNorm,
    Linear,
    RmsNorm,
    Rotary,
)
from mindbatch.kernels.ascend.step import (
    CHUNKS,
    PROMPTS,
    TOKENS,
    arrays_of,
    each_token_alone,
    rounded_sequences,
    shape_of,
)
from mindbatch.kernels.memory import FloatType
from mindbatch.kernels.reference import ReferenceKernels
from mindbatch.kernels.reference_latent import HeadProducts
from mindbatch.kernels.shapes import AttentionShape, CacheGeometry, ExpertsShape, HeadProductsShape
from mindbatch.kernels.step import Batch, IntArray, Span, StepShape


class AscendKernels(ReferenceKernels):
    """Fused operators; weights and cache in the layouts of the reference kernels."""

    name = "ascend"
    device_target = "Ascend"

    def __init__(self, float_type: FloatType, graph: str = TOKENS, *, single_tokens: bool = False) -> None:
        """single_tokens: every step is of kind TOKENS, whatever it holds."""
        self.float_type = float_type
        self.graph = graph
        self._single_tokens = single_tokens
        self._dtype = getattr(mindspore, float_type.name)

    def packed_stack(self, matrices: int, outputs: int, inputs: int) -> Array:
        """See `Kernels.packed_stack`; each matrix is [inputs, outputs], as GroupedMatmulV4 takes it."""
        return aligned_zeros((matrices, inputs, outputs), self.dtype)

    def pack(self, packed: Array, first_output: int, rows: Array) -> int:
        """See `Kernels.pack`; rows are of one matrix of a stack."""
        if packed.ndim == 2:
            return super().pack(packed, first_output, rows)
        matrix, first = divmod(first_output, packed.shape[2])
        packed[matrix, :, first : first + len(rows)] = rows.T
        return 0

    def linear(self, outputs: int) -> nn.Cell:
        return Linear()

    def experts(self, shape: ExpertsShape) -> nn.Cell:
        return Experts(shape, Activation(shape.activation, gated=True))

    def head_products(self, shape: HeadProductsShape) -> nn.Cell:
        return HeadProducts(shape, is_transposed=False)

    def norm(self, epsilon: float, centred: bool) -> nn.Cell:
        return LayerNorm(epsilon) if centred else RmsNorm(epsilon)

    def add_norm(self, epsilon: float, centred: bool) -> nn.Cell:
        return AddLayerNorm(epsilon) if centred else AddRmsNorm(epsilon)

    def rotary(
        self,
        shape: AttentionShape,
        epsilon: float,
        is_interleaved: bool = False,
        *,
        in_halves: bool = False,
    ) -> nn.Cell:
        return Rotary(shape, epsilon, is_interleaved, in_halves=in_halves)

    def activation(self, kind: str, gated: bool) -> nn.Cell:
        return Activation(kind, gated)

    def attention(self, shape: AttentionShape) -> nn.Cell:
        """See `Kernels.attention`. A window is in the mask of steps of kind CHUNKS: all where it hides."""
        if is_plain(shape):
            return PlainAttention(shape)
        wide = widened(shape)
        is_masked = self.graph == CHUNKS
        cell = PromptAttention(wide) if self.graph == PROMPTS else CachedAttention(wide, is_masked=is_masked)
        return cell if shape.alibi is None else AlibiAttention(shape, cell, self.dtype)

    def _cache_writer(self, shape: AttentionShape) -> nn.Cell:
        return AscendCacheWriter()

    def cache_shapes(
        self, shape: AttentionShape, geometry: CacheGeometry
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return super().cache_shapes(widened(shape), geometry)

    def table_width(self, needed: int, maximum: int) -> int:
        return maximum

    def spare_tokens(self, batch_size: int) -> int:
        return rounded_sequences(batch_size + 1)

    def step_shape(
        self, spans: Sequence[Span], pad: Callable[[int], int], capacity: int, attention: AttentionShape
    ) -> StepShape:
        if self._single_tokens or is_plain(attention):
            return each_token_alone(spans, pad)
        flash = flash_is_legal(attention.heads, widened(attention).head_dim, self.float_type)
        return shape_of(spans, pad, capacity, flash=flash, is_windowed=0 < attention.window < capacity)

    def graph_inputs(self, batch: Batch, shape: StepShape, geometry: CacheGeometry) -> Sequence[IntArray]:
        if batch.encoder_lengths is not None:
            return super().graph_inputs(batch, shape, geometry)
        arrays = arrays_of(batch, shape, geometry.num_blocks, geometry.block_size)
        return arrays if batch.adapters is None else (*arrays, batch.adapters)

    def for_graph(self, graph: str) -> AscendKernels:
        return AscendKernels(self.float_type, graph, single_tokens=self._single_tokens)

    def for_single_tokens(self) -> AscendKernels:
        return AscendKernels(self.float_type, single_tokens=True)

    def step_graph(self, cell: nn.Cell, geometry: CacheGeometry, *, adapted: bool = False) -> nn.Cell:
        kind = AdaptedAscendGraph if adapted else AscendGraph
        return kind(cell, self.graph, self._dtype, geometry.block_size)

    def head_graph(self, head: nn.Cell, *, adapted: bool = False) -> nn.Cell:
        kind = AdaptedAscendHead if adapted else AscendHead
        return kind(head, self._dtype)
