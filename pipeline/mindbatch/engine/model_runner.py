"""Running steps through the compiled model: the only place that builds tensors for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from mindspore import Tensor, nn

from mindbatch.engine.batch import buckets_up_to, flatten, pad_to_bucket
from mindbatch.engine.scheduler import Step
from mindbatch.engine.settings import EngineSettings
from mindbatch.engine.step_arrays import FloatArray, ModelOutput, StepInputs, StepValues
from mindbatch.kernels.interface import Kernels
from mindbatch.kernels.step import IntArray
from mindbatch.layers.decoder import Network
from mindbatch.models.compiled import CompiledCell, OnCompile
from mindbatch.models.runnable import RunnableModel


@dataclass(frozen=True)
class CompiledStep:
    """Graphs of one kind of step: with the head in it, and without; one and the same where there is none."""

    network: CompiledCell
    decoder: CompiledCell


class StepGraphs:
    """The graphs of a model, made of its layers for each kind of step that the kernels tell apart."""

    def __init__(self, model: RunnableModel, on_compile: OnCompile) -> None:
        self._model, self._on_compile = model, on_compile
        network = model.network(model.kernels)
        head = network.head
        self._adapted = model.adapters is not None
        self.head = None if head is None else self._head_cell(head, model.kernels)
        self._made = {model.kernels.graph: self._compiled(network, model.kernels)}

    def of(self, graph: str) -> CompiledStep:
        """The graphs of a kind of step, named as in `StepShape`."""
        if graph not in self._made:
            kernels = self._model.kernels.for_graph(graph)
            self._made[graph] = self._compiled(self._model.network(kernels), kernels)
        return self._made[graph]

    def _compiled(self, network: Network, kernels: Kernels) -> CompiledStep:
        decoder = self._step_cell(network.decoder, kernels)
        return CompiledStep(decoder if network.head is None else self._step_cell(network, kernels), decoder)

    def _step_cell(self, cell: nn.Cell, kernels: Kernels) -> CompiledCell:
        graph = kernels.step_graph(cell, self._model.cache.geometry, adapted=self._adapted)
        return CompiledCell(graph, self._on_compile)

    def _head_cell(self, head: nn.Cell, kernels: Kernels) -> CompiledCell:
        return CompiledCell(kernels.head_graph(head, adapted=self._adapted), self._on_compile)


class ModelRunner:
    """One rank's model with its paged cache. A step that all its ranks compute is prepared by one of them.

    A graph is compiled for each bucket of tokens when it is first needed: one with the head for steps whose
    logits are all wanted, one without for the others, and one of the head alone for each bucket of rows.
    """

    def __init__(
        self, model: RunnableModel, settings: EngineSettings, on_compile: OnCompile = lambda rows: None
    ) -> None:
        """`on_compile`: see `CompiledCell`."""
        self.vocab_size = model.vocab_size
        self.cache = model.cache
        self._model = model
        self._settings = settings
        spare = model.kernels.spare_tokens(settings.batch_size)
        self._buckets = buckets_up_to(settings.max_batched_tokens + spare, few=model.few_graphs)
        self._graphs = StepGraphs(model, on_compile)

    def run(self, step: Step) -> ModelOutput:
        """Copies the step's blocks, computes its tokens and writes them to the cache."""
        return self.complete(self.prepare(step))

    def announce(self, step: Step, first_block: int = 0) -> StepInputs:
        """See `StageRunner.announce`; in a model of one rank there is nobody to tell."""
        return self.prepare(step, first_block)

    def complete(self, inputs: StepInputs) -> ModelOutput:
        """See `StageRunner.complete`."""
        return ModelOutput(self.compute(inputs), self.project, inputs.adapters)

    def prepare(self, step: Step, first_block: int = 0) -> StepInputs:
        """The arrays of a step, which are the same for every rank of the model.

        first_block: of the cache, where the step's blocks are counted from.
        """
        kernels, width = self._model.kernels, self._table_width(step)
        spans = [(tokens.start, tokens.stop) for tokens in step.scheduled]
        capacity = width * self._settings.block_size
        shape = kernels.step_shape(spans, self._pad, capacity, self._model.attention)
        batch = flatten(
            step,
            shape.tokens,
            self._settings.block_size,
            width,
            first_block,
            with_adapters=self._model.adapters is not None,
        )
        arrays = tuple(kernels.graph_inputs(batch, shape, self.cache.geometry))
        with_logits = step.num_tokens == sum(tokens.num_logits for tokens in step.scheduled)
        copies = tuple((first_block + source, first_block + target) for source, target in step.copies)
        return StepInputs(
            shape.graph,
            arrays,
            copies,
            step.num_tokens,
            with_logits,
            batch.adapters,
            tuple(step.adapter_loads),
        )

    def compute(self, inputs: StepInputs) -> StepValues:
        """Loads adapters, copies blocks and runs the graph of a step that this rank or another has prepared.

        Of a pipeline stage before the last the values are what it hands over.
        """
        for slot, name in inputs.adapter_loads:
            assert self._model.adapters is not None
            self._model.adapters.load(slot, name)
        self.cache.copy_blocks(inputs.copies)
        graphs, tensors = self._graphs.of(inputs.graph), map(Tensor, inputs.arrays)
        if inputs.with_logits and self._graphs.head is not None:
            hidden, logits = graphs.network(*tensors)
            return StepValues(hidden.asnumpy(), logits.asnumpy())
        return StepValues(graphs.decoder(*tensors).asnumpy())

    def project(self, hidden: FloatArray, adapters: IntArray | None = None) -> FloatArray:
        """Logits [S, vocabulary] of hidden states [S, hidden]; not of a pipeline stage before the last.

        adapters: slots [S], where the model has any.
        """
        assert self._graphs.head is not None
        largest, shards = self._buckets[-1], []
        for first in range(0, len(hidden), largest):
            count = min(largest, len(hidden) - first)
            size = pad_to_bucket(count, self._buckets)
            given = [array[first : first + count] for array in (hidden, adapters) if array is not None]
            logits = self._graphs.head(*(Tensor(_padded(array, size)) for array in given))
            shards.append(logits.asnumpy()[:count])
        return shards[0] if len(shards) == 1 else np.concatenate(shards)

    def _pad(self, tokens: int) -> int:
        """The bucket that holds so many tokens; more than the largest holds is a bucket of its own."""
        return tokens if tokens > self._buckets[-1] else pad_to_bucket(tokens, self._buckets)

    def _table_width(self, step: Step) -> int:
        needed = max(len(tokens.sequence.block_table) for tokens in step.scheduled)
        return self._model.kernels.table_width(needed, self._settings.blocks_per_sequence)


def _padded(array: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """The array with rows of zeros up to so many."""
    padded = np.zeros((size, *array.shape[1:]), array.dtype)
    padded[: len(array)] = array
    return padded
