"""Runs the scheduler's steps on one rank's model: builds their arrays and computes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain, repeat
from typing import TYPE_CHECKING, Protocol

import numpy as np

from mindbatch.backends.model import Model
from mindbatch.engine.buckets import padded
from mindbatch.engine.settings import EngineSettings
from mindbatch.engine.step import RunnerOutput, ScheduledTokens, Step
from mindbatch.kernels.arrays import FloatArray
from mindbatch.kernels.interface import ProgramKernels
from mindbatch.kernels.step import Batch, IntArray, Logits, Span, StepInputs, StepShape, StepValues
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


def flatten(
    step: Step, sizes: tuple[int, int], block_size: int, table_width: int, *, with_adapters: bool = False
) -> Batch:
    """Lays a step out as arrays of so many tokens and block tables of so many sequences, padding included.

    sizes: tokens and sequences. table_width: columns of the block tables.
    with_adapters: the model has a slot for the adapter of each token. What else tokens of its type have shows
    in their sequences: an encoder's input, a second position, a state.
    """
    size, scheduled = sizes[0], step.scheduled
    spans, first = [range(tokens.start, tokens.stop) for tokens in scheduled], scheduled[0].sequence

    def by_token(numbers: Iterable[int]) -> IntArray:
        """Returns the number of each sequence, once for each of its tokens."""
        return _integers(map(repeat, numbers, map(len, spans)))

    indices, rows = _integers(spans), by_token(range(len(spans)))
    ids = _integers(tokens.sequence.tokens(tokens.start, tokens.stop) for tokens in scheduled)
    tables = [tokens.sequence.block_table for tokens in scheduled]
    block_tables = _block_tables(tables, (sizes[1], table_width))
    blocks, offsets = np.divmod(indices, block_size)
    slots = block_tables[rows, blocks] * block_size + offsets
    positions, lengths = (indices, indices + 1) if first.context is None else _within_contexts(scheduled)
    others: dict[str, IntArray] = {}
    if with_adapters:
        others["adapters"] = padded(by_token(tokens.adapter for tokens in scheduled), size)
    if first.num_encoder_tokens:
        inputs = by_token(tokens.sequence.num_encoder_tokens for tokens in scheduled)
        others["encoder_lengths"] = padded(inputs, size)
    if first.state_table:
        others["states"] = padded(_integers(map(_state_slots, scheduled)), size, -1)
    return Batch(
        padded(ids, size),
        padded(positions, size),
        padded(slots, size, -1),
        padded(rows, size),
        block_tables,
        padded(lengths, size),
        **others,
    )


def _state_slots(tokens: ScheduledTokens) -> Iterable[int]:
    """Returns the slot of each token; -1 for drafted ones, which may be rejected."""
    verified = min(tokens.stop, len(tokens.sequence)) - tokens.start
    return chain(
        repeat(tokens.sequence.state_table[0], verified), repeat(-1, tokens.stop - tokens.start - verified)
    )


def _integers(parts: Iterable[Iterable[int]]) -> IntArray:
    """Concatenates integers to one array, which takes less time than operations on small arrays."""
    return np.fromiter(chain.from_iterable(parts), np.int32)


def _block_tables(tables: Sequence[list[int]], shape: tuple[int, int]) -> IntArray:
    """Stacks block tables to an array of this shape, padded with zeros."""
    rows, width = shape
    fillings = [repeat(0, width - len(table)) for table in tables]
    empty = repeat(0, width * (rows - len(tables)))
    return _integers([*chain.from_iterable(zip(tables, fillings, strict=True)), empty]).reshape(shape)


def _within_contexts(scheduled: Sequence[ScheduledTokens]) -> tuple[IntArray, IntArray]:
    """Returns the positions [T, 2] and lengths [T] of a model whose prompts have contexts."""
    pairs = []
    for tokens in scheduled:
        context, indices = tokens.sequence.context, np.arange(tokens.start, tokens.stop, dtype=np.int32)
        assert context is not None, "Engine.add finds the context of every prompt"
        pairs.append((context.positions(indices), context.lengths(indices)))
    positions, lengths = zip(*pairs, strict=True)
    return np.concatenate(positions), np.concatenate(lengths)


def wanted_tokens(step: Step) -> IntArray:
    """Returns the indices of the step's tokens whose logits or hidden states may be needed."""
    wanted, end = list[int](), 0
    for tokens in step.scheduled:
        first, end = end, end + tokens.stop - tokens.start
        wanted += range(
            first + tokens.num_encoder_tokens if tokens.group.records_prompt else end - tokens.num_logits, end
        )
    return np.array(wanted, np.int32)
