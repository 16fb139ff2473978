"""Steps as compiled graphs of static shapes: padded to a bucket of tokens, a graph for each bucket."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from mindspore import Tensor, nn

from mindbatch.engine.batch import buckets_up_to, pad_to_bucket
from mindbatch.engine.settings import EngineSettings
from mindbatch.engine.step_arrays import FloatArray, StepInputs, StepValues
from mindbatch.kernels.ascend.recorded_cell import DECODER, HEAD, OF_PART, recorded_cell
from mindbatch.kernels.graphs import Network
from mindbatch.kernels.mindspore_kernels import MindSporeKernels
from mindbatch.kernels.program.step import StepRecordings
from mindbatch.kernels.step import IntArray, Logits, Span, StepShape
from mindbatch.models.compiled import CompiledCell, OnCompile
from mindbatch.models.model import Model


@dataclass(frozen=True)
class CompiledStep:
    """Graphs of one kind of step: with the head in it, and without; one and the same where there is none."""

    network: CompiledCell
    decoder: CompiledCell


class StepGraphs:
    """A `StepNetwork` of a model's layers, compiled for each kind of step that the kernels tell apart.

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
        self._made = {kernels.graph: self._compiled(network, kernels)}

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
            logits = self._head(*(Tensor(_padded(array, size)) for array in arrays))
            shards.append(logits.asnumpy()[:count])
        return Logits(shards[0] if len(shards) == 1 else np.concatenate(shards))

    def _pad(self, tokens: int) -> int:
        """The bucket that holds so many tokens; more than the largest holds is a bucket of its own."""
        return tokens if tokens > self._buckets[-1] else pad_to_bucket(tokens, self._buckets)

    def _of(self, graph: str) -> CompiledStep:
        """The graphs of a kind of step, named as in `StepShape`."""
        if graph not in self._made:
            kernels = self._kernels.for_graph(graph)
            self._made[graph] = self._compiled(self._network(kernels), kernels)
        return self._made[graph]

    def _network(self, kernels: MindSporeKernels) -> Network:
        """The model for a kind of step; weights and cache are always the same."""
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


def _padded(array: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """The array with rows of zeros up to so many."""
    padded = np.zeros((size, *array.shape[1:]), array.dtype)
    padded[: len(array)] = array
    return padded
