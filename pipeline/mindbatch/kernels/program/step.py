"""A model's decoder and head as programs: what a step is run with where nothing is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from mindbatch.kernels.arrays import FloatArray
from mindbatch.kernels.layer import Operation
from mindbatch.kernels.native_library import NativeLibrary
from mindbatch.kernels.program.last_rows import LastRows
from mindbatch.kernels.program.outputs import OutputMemory
from mindbatch.kernels.program.program import Program
from mindbatch.kernels.program.recording import ROWS, Recording, recorded
from mindbatch.kernels.program.summary import summarised
from mindbatch.kernels.step import Batch, IntArray, Logits

LENGTHS = Batch._fields.index("lengths")


class Programs(Protocol):
    """A model's steps: see `StepPrograms`."""

    @property
    def has_head(self) -> bool:
        """Whether it gives logits."""
        ...

    def hidden(self, step: Sequence[IntArray], wanted: IntArray | None = None) -> FloatArray:
        """See `StepPrograms.hidden`."""
        ...

    def logits(self, hidden: FloatArray, adapters: IntArray | None) -> Logits:
        """See `StepPrograms.logits`."""
        ...

    def hidden_and_logits(self, step: Sequence[IntArray]) -> tuple[FloatArray, Logits]:
        """See `StepPrograms.hidden_and_logits`."""
        ...


class StepPrograms:
    """Each takes any number of tokens. Without a head (a pipeline stage before the last) there is one."""

    def __init__(
        self,
        decoder: Operation,
        head: Operation | None,
        library: NativeLibrary,
        *,
        adapted: bool,
        num_positions: int = 1,
    ) -> None:
        """decoder, head: those of `layers.decoder.Network`, made by the recorder's kernels.

        adapted: a step brings the slots of its tokens' adapters. num_positions: of each token.
        """
        step = _recorded_step(decoder, adapted, num_positions)
        self._head: Program | None = None
        self._decoder: Program | LastRows
        if head is None:
            self._decoder = Program(step, library)
            return
        [hidden] = step.outputs
        self._decoder = LastRows(step, step.inputs[LENGTHS], library)
        last = summarised(recorded_head(head, hidden.shape[1:], adapted=adapted))
        logits = [OutputMemory(symbol) for symbol in last.outputs]
        self._head = Program(last, library, logits)
        whole = _recorded_step(decoder, adapted, num_positions)
        [hidden] = whole.outputs
        recorded(head, whole, hidden, tuple(whole.inputs[LENGTHS + 1 :]))
        self._whole = Program(summarised(whole), library, [OutputMemory(hidden), *logits])

    @property
    def has_head(self) -> bool:
        return self._head is not None

    def hidden(self, step: Sequence[IntArray], wanted: IntArray | None = None) -> FloatArray:
        """Hidden states [T, hidden_size] of the fields of a `Batch`, in its order.

        wanted: the tokens whose hidden states are given, in rising order; None for all, and without a head.
        """
        if isinstance(self._decoder, LastRows):
            [hidden] = self._decoder.run(step, wanted)
        else:
            [hidden] = self._decoder.run(step)
        return hidden

    def logits(self, hidden: FloatArray, adapters: IntArray | None) -> Logits:
        """Logits of hidden states [S, hidden_size] and, if any, the slots [S] of adapters."""
        assert self._head is not None
        return Logits(*self._head.run([hidden] if adapters is None else [hidden, adapters]))

    def hidden_and_logits(self, step: Sequence[IntArray]) -> tuple[FloatArray, Logits]:
        """Hidden states of all tokens of a step and their logits, as the two apart give them but at once."""
        assert self._head is not None
        hidden, *logits = self._whole.run(step)
        return hidden, Logits(*logits)


def _recorded_step(decoder: Operation, adapted: bool, num_positions: int) -> Recording:
    recording = Recording()
    ids = recording.input((), np.int32)
    positions = recording.input(() if num_positions == 1 else (num_positions,), np.int32)
    slots, rows = (recording.input((), np.int32) for _ in range(2))
    tables = recording.input((ROWS,), np.int32)
    lengths = recording.input((), np.int32)
    adapters = (recording.input((), np.int32),) if adapted else ()
    return recorded(decoder, recording, ids, positions, (slots, rows, tables, lengths), adapters)


def recorded_head(head: Operation, width: Sequence[int], *, adapted: bool) -> Recording:
    """Of hidden states of that width, and the slots of adapters where the model has them."""
    recording = Recording()
    hidden = recording.input(width, np.float32)
    adapters = (recording.input((), np.int32),) if adapted else ()
    return recorded(head, recording, hidden, adapters)
