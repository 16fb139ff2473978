"""Runs steps as compiled graphs of static shapes, one for each bucket of tokens that steps are padded to."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mindspore import Tensor, nn
from mindspore.graph.api import _cell_graph_executor

from mindbatch.backends.model import Model
from mindbatch.engine.buckets import buckets_up_to, pad_to_bucket, padded
from mindbatch.engine.settings import EngineSettings
from mindbatch.kernels.arrays import FloatArray
from mindbatch.kernels.ascend.graphs import DECODER, HEAD, OF_PART, recorded_cell
from mindbatch.kernels.ascend.step import max_gathered_tokens
from mindbatch.kernels.mindspore_kernels import MindSporeKernels, Network, part_graph
from mindbatch.kernels.step import (
    ANY_STEP,
    Batch,
    IntArray,
    Logits,
    Span,
    StepInputs,
    StepShape,
    StepValues,
    encoder_and_decoder,
)
from mindbatch.kernels.step_programs import StepRecordings

OnCompile = Callable[[int], object]


class CompiledCell:
    """A cell in graph mode, compiled once per combination of input shapes; their dtypes never change.

    nn.Cell.__call__ sets attributes on every sub-cell each time, which costs about as much as running a small
    model. The graph of a known shape is called by its name instead. (The executor is not public API; the
    pinned MindSpore version has it, and tests/numerics runs through it.)
    """

    def __init__(self, cell: nn.Cell, on_compile: OnCompile) -> None:
        """`on_compile` is called with the rows of the first input before a compilation, with 0 after."""
        self._cell = cell.set_train(False)
        self._on_compile = on_compile
        self._phases: dict[tuple[tuple[int, ...], ...], str] = {}

    def __call__(self, *inputs: Tensor) -> Any:
        """Returns the cell's output, a tensor or a tuple; compiles on the first call with these shapes."""
        shapes = tuple(tensor.shape for tensor in inputs)
        phase = self._phases.get(shapes)
        if phase is None:
            self._on_compile(shapes[0][0])
            output = self._cell(*inputs)
            self._on_compile(0)
            self._phases[shapes] = self._cell.current_phase
            return output
        return _cell_graph_executor._exec_pip(self._cell, *inputs, phase=phase)


@dataclass(frozen=True)
class CompiledStep:
    """Graphs of one kind of step, with the head and without; the same graph in a model without a head."""

    network: CompiledCell
    decoder: CompiledCell


class StepGraphs:
    """A `StepNetwork` of a model's layers, compiled for each kind of step of the kernels.

    A graph is compiled for each bucket of tokens when it is first needed: one with the head for steps whose
    logits are all wanted, one without for the others, and one of the head alone for each bucket of rows.
    """

    def __init__(self, model: Model, settings: EngineSettings, on_compile: OnCompile) -> None:
        """`on_compile`: see `CompiledCell`."""
        self._model, self._on_compile = model, on_compile
        kernels = model.kernels
        assert isinstance(kernels, MindSporeKernels)
        self._kernels = kernels
        spare = kernels.spare_tokens(settings.batch_size)
        self._buckets = buckets_up_to(settings.max_batched_tokens + spare, few=model.few_graphs)
        network = self._network(kernels)
        self._adapted = model.adapters is not None
        self._head = None if network.head is None else self._head_cell(network.head, kernels)
        self._compiled_steps = {kernels.graph: self._compiled(network, kernels)}

    def shape_of(self, spans: Sequence[Span], capacity: int) -> StepShape:
        return self._kernels.step_shape(spans, self._pad, capacity, self._model.attention)

    def run(self, inputs: StepInputs) -> StepValues:
        graphs, tensors = self._of(inputs.graph), map(Tensor, inputs.arrays)
        if inputs.with_logits and self._head is not None:
            hidden, logits = graphs.network(*tensors)
            return StepValues(hidden.asnumpy(), Logits(logits.asnumpy()))
        return StepValues(graphs.decoder(*tensors).asnumpy())

    def project(self, hidden: FloatArray, adapters: IntArray | None) -> Logits:
        assert self._head is not None
        largest, shards = self._buckets[-1], []
        for first in range(0, len(hidden), largest):
            count = min(largest, len(hidden) - first)
            size = pad_to_bucket(count, self._buckets)
            arrays = [array[first : first + count] for array in (hidden, adapters) if array is not None]
            logits = self._head(*(Tensor(padded(array, size)) for array in arrays))
            shards.append(logits.asnumpy()[:count])
        return Logits(shards[0] if len(shards) == 1 else np.concatenate(shards))

    def _pad(self, tokens: int) -> int:
        """Returns the bucket for so many tokens; above the largest bucket, their number itself."""
        return tokens if tokens > self._buckets[-1] else pad_to_bucket(tokens, self._buckets)

    def _of(self, graph: str) -> CompiledStep:
        """Returns the graphs of a kind of step, named as in `StepShape`."""
        if graph not in self._compiled_steps:
            kernels = self._kernels.for_graph(graph)
            self._compiled_steps[graph] = self._compiled(self._network(kernels), kernels)
        return self._compiled_steps[graph]

    def _network(self, kernels: MindSporeKernels) -> Network:
        """Builds the model for a kind of step; all kinds share weights and cache."""
        if not isinstance(steps := self._model.steps, StepRecordings):
            return steps()
        head = None if steps.head is None else recorded_cell(steps.head, kernels, HEAD)
        if steps.encoder is None:
            return Network(recorded_cell(steps.step, kernels, DECODER), head)
        encoder, decoder = (
            recorded_cell(recording, kernels, OF_PART) for recording in (steps.encoder, steps.step)
        )
        return Network(decoder, head, encoder)

    def _compiled(self, network: Network, kernels: MindSporeKernels) -> CompiledStep:
        decoder = self._step_cell(network.decoder, kernels)
        return CompiledStep(decoder if network.head is None else self._step_cell(network, kernels), decoder)

    def _step_cell(self, cell: nn.Cell, kernels: MindSporeKernels) -> CompiledCell:
        graph = kernels.step_graph(cell, self._model.cache.geometry, adapted=self._adapted)
        return CompiledCell(graph, self._on_compile)

    def _head_cell(self, head: nn.Cell, kernels: MindSporeKernels) -> CompiledCell:
        return CompiledCell(kernels.head_graph(head, adapted=self._adapted), self._on_compile)


class EncoderDecoderGraphs(StepGraphs):
    """Graphs of a model with an encoder; a step has all tokens of an input or none."""

    def shape_of(self, spans: Sequence[Span], capacity: int) -> StepShape:
        """Counts tokens and rows; padding comes after the step is split into encoder and decoder."""
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
        self._encoder, decoder = (
            CompiledCell(part_graph(cell, adapted=self._adapted), self._on_compile)
            for cell in (network.encoder, network.decoder)
        )
        return CompiledStep(decoder, decoder)

    def _decoded(self, tokens: Batch) -> FloatArray:
        """Runs the decoder in chunks of tokens, whose gathered keys and values fit the memory."""
        capacity = tokens.block_tables.shape[1] * self._model.cache.geometry.block_size
        numbers = 2 * self._model.attention.kv_heads * self._model.attention.head_dim
        chunk = max(1, min(self._buckets[-1], max_gathered_tokens(capacity, numbers)))
        graph, parts = self._of(self._kernels.graph).decoder, []
        tokens = tokens._replace(block_tables=tokens.block_tables[tokens.rows])
        for first in range(0, len(tokens.ids), chunk):
            some = Batch._make(array if array is None else array[first : first + chunk] for array in tokens)
            parts.append(graph(*map(Tensor, self._of_decoder(some).arrays())).asnumpy()[: len(some.ids)])
        return np.concatenate(parts) if parts else np.zeros((0, 0), np.float32)

    def _of_encoder(self, tokens: Batch) -> Batch:
        """Pads the encoder's tokens to a bucket, without blocks, as its attention needs no cache."""
        count = len(tokens.ids)
        tokens = tokens._replace(block_tables=np.zeros((count, 1), np.int32))
        return self._padded(tokens, self._pad(count))

    def _of_decoder(self, tokens: Batch) -> Batch:
        """Pads the decoder's tokens to a bucket; each token has its own row of blocks."""
        size = pad_to_bucket(len(tokens.ids), self._buckets)
        return self._padded(tokens, size)._replace(rows=np.arange(size, dtype=np.int32))

    def _padded(self, tokens: Batch, size: int) -> Batch:
        """Pads a batch; padding has no row and a block of its own."""
        geometry, count = self._model.cache.geometry, len(tokens.ids)
        fillings = {"lengths": 1, "rows": -1, "block_tables": geometry.num_blocks}
        arrays = {
            name: padded(array, size, fillings.get(name, 0))
            for name, array in tokens._asdict().items()
            if array is not None
        }
        spare = np.arange(count, size, dtype=np.int32) % geometry.block_size
        arrays["slots"][count:] = geometry.num_blocks * geometry.block_size + spare
        return Batch(**arrays)
