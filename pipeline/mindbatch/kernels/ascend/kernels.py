"""The kernels on Ascend: which cell computes what, for each kind of step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mindspore
from mindspore import Parameter, Tensor, nn

from mindbatch.kernels.adapters import AdaptedShape, AdapterStore, Ranks, SlotArrays
from mindbatch.kernels.arrays import Array, CopyRows, aligned_zeros
from mindbatch.kernels.ascend import graphs, operators, plain_attention, plain_cells
from mindbatch.kernels.ascend.attention import (
    AlibiAttention,
    CachedAttention,
    PlainAttention,
    PromptAttention,
)
from mindbatch.kernels.ascend.step import (
    CHUNKS,
    PROMPTS,
    TOKENS,
    arrays_of,
    each_token_alone,
    flash_is_legal,
    is_plain,
    rounded_sequences,
    shape_of,
    widened,
)
from mindbatch.kernels.memory import FloatType
from mindbatch.kernels.mindspore_kernels import MindSporeKernels
from mindbatch.kernels.shapes import AttentionShape, CacheGeometry, CacheShapes, ExpertsShape
from mindbatch.kernels.step import Batch, IntArray, Span, StepShape
from mindbatch.parallel.context import ReceiveHidden, SendHidden, all_gather, all_reduce

_CELLS: Mapping[str, Callable[..., nn.Cell]] = {
    "activation": operators.ActivationCell,
    "adapted_embedding": lambda shape: plain_cells.GatheredEmbedding(plain_cells.EmbeddingCell()),
    "adapted_products": lambda outputs, shape: plain_cells.GatheredProducts(),
    "adapted_sum": lambda shape: plain_cells.GatheredSum(),
    "all_gather": all_gather,
    "all_reduce": all_reduce,
    "capped": plain_cells.Capped,
    "cross_attention": plain_attention.CrossAttentionCell,
    "embedding": lambda width: plain_cells.EmbeddingCell(),
    "head_products": plain_cells.HeadProducts,
    "latent_heads": plain_cells.LatentHeads,
    "linear": lambda outputs: operators.LinearCell(),
    "norm_by_sums": plain_cells.NormBySums,
    "rotary": operators.RotaryCell,
    "rotary_angles": plain_cells.RotaryAngles,
    "send_hidden": SendHidden,
    "square_sums": plain_cells.SquareSums,
    "tempered": plain_cells.Tempered,
    "write_cache": lambda shape: plain_attention.CacheWrite(),
    "xielu": plain_cells.Xielu,
}
"""Kernels of operations that every kind of step computes in the same way, but for those of one operator.

These are written into the cell that calls them: see `recorded_cell`.
"""


class AscendKernels(MindSporeKernels):
    """Fused operators. The cache is [blocks, block_size, kv_heads, head_dim]."""

    name = "ascend"
    device_target = "Ascend"

    def __init__(self, float_type: FloatType, graph: str = TOKENS, *, single_tokens: bool = False) -> None:
        """single_tokens: every step is of kind TOKENS, whatever it holds."""
        self.float_type = float_type
        self.graph = graph
        self._single_tokens = single_tokens
        self._dtype = getattr(mindspore, float_type.name)

    def packed_zeros(self, outputs: int, inputs: int, segments: int = 1) -> Array:
        return aligned_zeros((outputs, inputs), self.dtype)

    def packed_stack(self, matrices: int, outputs: int, inputs: int, segments: int = 1) -> Array:
        """Zeros [matrices, inputs, outputs], as GroupedMatmulV4 takes a stack."""
        return aligned_zeros((matrices, inputs, outputs), self.dtype)

    def pack(self, packed: Array, first_output: int, rows: Array) -> int:
        """Copies rows, which are of one matrix of a stack."""
        if packed.ndim == 2:
            packed[first_output : first_output + len(rows)] = rows
            return 0
        matrix, first = divmod(first_output, packed.shape[2])
        packed[matrix, :, first : first + len(rows)] = rows.T
        return 0

    def adapter_store(
        self, shapes: Mapping[str, AdaptedShape], adapters: Sequence[Ranks], slots: int
    ) -> AdapterStore:
        return SlotArrays(shapes, slots, self.dtype, self.as_parameter, _send)

    def cell(self, operation: str, **settings: Any) -> nn.Cell:
        make = _CELLS.get(operation)
        cell: nn.Cell = (getattr(self, operation) if make is None else make)(**settings)
        return cell

    def norm(self, epsilon: float, centred: bool) -> nn.Cell:
        return operators.LayerNormCell(epsilon) if centred else operators.RmsNormCell(epsilon)

    def add_norm(self, epsilon: float, centred: bool) -> nn.Cell:
        return operators.AddLayerNorm(epsilon) if centred else operators.AddRmsNorm(epsilon)

    def receive_hidden(self, stage: int, tensor_rank: int, width: int) -> nn.Cell:
        return ReceiveHidden(stage, tensor_rank, width, self.absent().dtype)

    def experts(self, shape: ExpertsShape) -> nn.Cell:
        return operators.ExpertsCell(shape, operators.ActivationCell(shape.activation, gated=True))

    def attention(self, shape: AttentionShape) -> nn.Cell:
        """A window is in the mask of steps of kind CHUNKS: all where it hides."""
        if is_plain(shape):
            return PlainAttention(shape)
        wide = widened(shape)
        is_masked = self.graph == CHUNKS
        cell = PromptAttention(wide) if self.graph == PROMPTS else CachedAttention(wide, is_masked=is_masked)
        return cell if shape.alibi is None else AlibiAttention(shape, cell, self.dtype)

    def distance_attention(self, shape: AttentionShape, within_step: bool) -> nn.Cell:
        make = plain_attention.StepAttention if within_step else plain_attention.DistanceAttentionCell
        return make(shape)

    def cache_shapes(self, shape: AttentionShape, geometry: CacheGeometry) -> CacheShapes:
        cached = widened(shape)
        size = (geometry.num_blocks + 1, geometry.block_size, cached.kv_heads, cached.head_dim)
        return size, size

    def block_copies(
        self, arrays: Sequence[Array], parameters: Sequence[Parameter], padding: int
    ) -> CopyRows:
        return plain_cells.block_copies(parameters, padding)

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
        return graphs.step_graph(cell, self.graph, self._dtype, geometry.block_size, adapted=adapted)

    def head_graph(self, head: nn.Cell, *, adapted: bool = False) -> nn.Cell:
        return graphs.head_graph(head, self._dtype, adapted=adapted)


def _send(parameter: Parameter, array: Array) -> None:
    parameter.set_data(Tensor(array))
