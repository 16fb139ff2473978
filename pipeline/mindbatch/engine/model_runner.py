"""Runs the scheduler's steps on one rank's model: builds their arrays and computes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

from mindbatch.backends.model import Model
from mindbatch.engine.batch import RunnerOutput, flatten, wanted_tokens
from mindbatch.engine.settings import EngineSettings
from mindbatch.engine.step import Step
from mindbatch.kernels.arrays import FloatArray
from mindbatch.kernels.interface import ProgramKernels
from mindbatch.kernels.step import IntArray, Logits, Span, StepInputs, StepShape, StepValues
from mindbatch.kernels.step_programs import StepRecordings, programs_of

if TYPE_CHECKING:  # MindSpore
    from mindbatch.engine.step_graphs import OnCompile


MemoryGuard = Callable[[str], AbstractContextManager[None]]


class StepNetwork(Protocol):
    def shape_of(self, spans: Sequence[Span], capacity: int) -> StepShape:
        """Returns the graph and the padded sizes of a step."""

    def run(self, inputs: StepInputs) -> StepValues:
        """Computes a step; a pipeline stage before the last returns the input of the next stage."""

    def project(self, hidden: FloatArray, adapters: IntArray | None) -> Logits:
        """Returns the logits of hidden states [S, hidden size], as `ModelRunner.project` does."""


class ModelRunner:
    """Runs steps on one rank's model with its paged cache; one rank prepares the steps of all of them."""

    def __init__(
        self,
        model: Model,
        settings: EngineSettings,
        on_compile: OnCompile = lambda rows: None,
        guard: MemoryGuard = lambda action: nullcontext(),
    ) -> None:
        """`on_compile`: see `CompiledCell`. guard: context of an action that may run out of memory."""
        self.vocab_size = model.vocab_size
        self.cache = model.cache
        self._model = model
        self._settings = settings
        self._guard = guard
        self._network: StepNetwork
        if isinstance(model.kernels, ProgramKernels) and isinstance(model.steps, StepRecordings):
            self._network = programs_of(model.steps, model.kernels)
        else:
            from mindbatch.engine.step_graphs import (
                EncoderDecoderGraphs,  # MindSpore
                StepGraphs,
            )

            graphs = StepGraphs if settings.decoder_start_id is None else EncoderDecoderGraphs
            self._network = graphs(model, settings, on_compile)

    @property
    def is_adapted(self) -> bool:
        """True if steps have the adapter slot of each token."""
        return self._model.adapters is not None

    def run(self, step: Step) -> RunnerOutput:
        return self.complete(self.prepare(step))

    def announce(self, step: Step) -> StepInputs:
        """Prepares the step; a model of one rank has no other ranks to inform."""
        return self.prepare(step)

    def complete(self, inputs: StepInputs) -> RunnerOutput:
        return RunnerOutput(self.compute(inputs), self.project, inputs.adapters)

    def prepare(self, step: Step) -> StepInputs:
        """Builds the arrays of a step, which are the same for every rank of the model."""
        settings = self._settings
        needed = max(len(tokens.sequence.block_table) for tokens in step.scheduled)
        width = self._model.kernels.table_width(needed, settings.blocks_per_sequence)
        spans = [(tokens.start, tokens.stop) for tokens in step.scheduled]
        shape = self._network.shape_of(spans, width * settings.block_size)
        sizes = (shape.tokens, shape.sequences)
        batch = flatten(step, sizes, settings.block_size, width, with_adapters=self.is_adapted)
        arrays = tuple(self._model.kernels.graph_inputs(batch, shape, self.cache.geometry))
        with_logits = step.num_tokens == sum(tokens.num_logits for tokens in step.scheduled)
        return StepInputs(
            shape.graph,
            arrays,
            tuple(step.copies),
            step.num_tokens,
            with_logits,
            batch.adapters,
            tuple(step.adapter_loads),
            None if with_logits else wanted_tokens(step),
            tuple(step.state_copies),
        )

    def compute(self, inputs: StepInputs) -> StepValues:
        """Loads adapters, copies blocks and computes a step that this rank or another has prepared.

        A pipeline stage before the last returns the input of the next stage.

        Raises:
            MindBatchError: memory has run out.
        """
        with self._guard("computing a step"):
            for slot, name in inputs.adapter_loads:
                assert self._model.adapters is not None
                self._model.adapters.load(slot, name)
            self.cache.copy_blocks(inputs.copies)
            self.cache.copy_states(inputs.state_copies)
            return self._network.run(inputs)

    def project(self, hidden: FloatArray, adapters: IntArray | None = None) -> Logits:
        """Returns the logits of hidden states [S, hidden size]; only the last pipeline stage has them.

        adapters: the slot of each row's adapter [S], where the model has any.
        """
        with self._guard("computing logits"):
            return self._network.project(hidden, adapters)
