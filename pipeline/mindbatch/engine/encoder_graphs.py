"""Steps of an encoder-decoder as compiled graphs: of the encoder and of the decoder, for each bucket."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mindspore import Tensor

from mindbatch.engine.batch import pad_to_bucket
from mindbatch.engine.step_arrays import FloatArray, StepInputs, StepValues
from mindbatch.engine.step_graphs import CompiledStep, StepGraphs
from mindbatch.kernels.ascend.limits import most_gathered_tokens
from mindbatch.kernels.graphs import AdaptedEncoderDecoderGraph, EncoderDecoderGraph, Network
from mindbatch.kernels.mindspore_kernels import MindSporeKernels
from mindbatch.kernels.step import ANY_STEP, IntArray, PartArrays, Span, StepShape, encoder_and_decoder
from mindbatch.models.compiled import CompiledCell


class EncoderDecoderGraphs(StepGraphs):
    """Graphs of a model with an encoder; a step has all tokens of an input or none."""

    def shape_of(self, spans: Sequence[Span], capacity: int) -> StepShape:
        """Counts tokens and rows; nothing is padded before the step is parted."""
        return StepShape(ANY_STEP, sum(stop - start for start, stop in spans), len(spans))

    def run(self, inputs: StepInputs) -> StepValues:
        """Runs encoder and decoder. Logits are left to `project`."""
        encoder, decoder, decoded = encoder_and_decoder(inputs.arrays)
        if len(encoder.ids):
            self._encoder(*map(Tensor, self._of_encoder(encoder).arrays()))
        hidden = self._decoded(decoder)
        if inputs.wanted is None:
            return StepValues(hidden)
        return StepValues(hidden[np.searchsorted(decoded, inputs.wanted)], tokens=inputs.wanted)

    def _compiled(self, network: Network, kernels: MindSporeKernels) -> CompiledStep:
        graph = AdaptedEncoderDecoderGraph if self._adapted else EncoderDecoderGraph
        self._encoder, decoder = (
            CompiledCell(graph(cell), self._on_compile) for cell in (network.encoder, network.decoder)
        )
        return CompiledStep(decoder, decoder)

    def _decoded(self, tokens: PartArrays) -> FloatArray:
        """Some tokens after the others: the keys and values that are gathered for each fill the memory."""
        capacity = tokens.block_tables.shape[1] * self._model.cache.geometry.block_size
        numbers = 2 * self._model.attention.kv_heads * self._model.attention.head_dim
        most = max(1, min(self._buckets[-1], most_gathered_tokens(capacity, numbers)))
        graph, parts = self._of(self._kernels.graph).decoder, []
        for first in range(0, len(tokens.ids), most):
            some = slice(first, first + most)
            arrays = self._of_decoder(tokens, some).arrays()
            count = len(tokens.ids[some])
            parts.append(graph(*map(Tensor, arrays)).asnumpy()[:count])
        return np.concatenate(parts) if parts else np.zeros((0, 0), np.float32)

    def _of_encoder(self, tokens: PartArrays) -> PartArrays:
        """Padded to a bucket. Its attention needs no cache, so that it gets no blocks to read."""
        size = self._pad(len(tokens.ids))
        return PartArrays(
            _filled(tokens.ids, size, 0),
            self._slots(tokens.slots, size),
            _filled(tokens.rows, size, -1),
            np.zeros((1, 1), np.int32),
            _filled(tokens.lengths, size, 1),
            _filled(tokens.firsts, size, 0),
            _filled(tokens.positions, size, 0),
            None if tokens.adapters is None else _filled(tokens.adapters, size, 0),
        )

    def _of_decoder(self, tokens: PartArrays, some: slice) -> PartArrays:
        """Padded to a bucket, each token with a row of blocks of its own."""
        tables = tokens.block_tables[tokens.rows[some]]
        size = pad_to_bucket(len(tables), self._buckets)
        blocks = np.full((size, tables.shape[1]), self._model.cache.geometry.num_blocks, np.int32)
        blocks[: len(tables)] = tables
        return PartArrays(
            _filled(tokens.ids[some], size, 0),
            self._slots(tokens.slots[some], size),
            np.arange(size, dtype=np.int32),
            blocks,
            _filled(tokens.lengths[some], size, 1),
            _filled(tokens.firsts[some], size, 0),
            _filled(tokens.positions[some], size, 0),
            None if tokens.adapters is None else _filled(tokens.adapters[some], size, 0),
        )

    def _slots(self, slots: IntArray, size: int) -> IntArray:
        """Padding is written to the block that is kept for it."""
        geometry = self._model.cache.geometry
        padded = (
            geometry.num_blocks * geometry.block_size + np.arange(size, dtype=np.int32) % geometry.block_size
        )
        padded[: len(slots)] = slots
        return padded.astype(np.int32)


def _filled(values: IntArray, size: int, number: int) -> IntArray:
    filled = np.full(size, number, np.int32)
    filled[: len(values)] = values
    return filled
