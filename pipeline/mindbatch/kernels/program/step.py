"""A model's step and head as programs: what a step is run with where nothing is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from mindbatch.kernels.arrays import Array, FloatArray
from mindbatch.kernels.interface import ProgramKernels, Runnable
from mindbatch.kernels.program.buffers import OutputMemory
from mindbatch.kernels.program.fusion import summarised
from mindbatch.kernels.recording import ROWS, RecordedCall, Recording, Symbol
from mindbatch.kernels.step import Batch, IntArray, Logits, PartArrays, encoder_and_decoder

ATTENTION = ("attention", "mb_attention")
RECURRENT = ("causal_convolution", "gated_delta", "mb_causal_convolution", "mb_gated_delta")


@dataclass(frozen=True)
class CutRecording:
    """A step in two parts.

    before: up to the last layer over sequences. If that is attention, it takes `lengths` of its own as one
        more input: a token that sees nothing is not attended for, though its keys and values are written.
    after: the rest, which computes row by row from what `before` gives, and from those of the step's inputs
        whose places are `inputs`; it may read caches that `before` has written.
    """

    before: Recording
    after: Recording
    inputs: tuple[int, ...]


def cut_recording(step: Recording, lengths: Symbol) -> CutRecording:
    """Cuts a step's lowered recording. lengths: the input of how many positions each token sees."""
    over_sequences = (*ATTENTION, *RECURRENT)
    last = max(place for place, call in enumerate(step.calls) if call.operation.startswith(over_sequences))
    before = Recording([*step.inputs], step.calls[:last])
    seen = before.input((), lengths.dtype)
    sequence_call = step.calls[last]
    others = tuple(seen if argument is lengths else argument for argument in sequence_call.inputs)
    before.calls.append(replace(sequence_call, inputs=others))
    calls = step.calls[last + 1 :]
    written = {symbol for call in calls for symbol in call.outputs}
    read = dict.fromkeys(symbol for call in calls for symbol in _symbols(call) if symbol not in written)
    assert all(symbol.shape.count(ROWS) == 1 for symbol in read if symbol not in step.inputs), (
        "behind attention tokens are rows"
    )
    before.outputs.extend(symbol for symbol in read if symbol not in step.inputs)
    step_inputs = [symbol for symbol in read if symbol in step.inputs]
    after = Recording([*before.outputs, *step_inputs], calls, step.outputs)
    return CutRecording(before, after, tuple(map(step.inputs.index, step_inputs)))


def _symbols(call: RecordedCall) -> list[Symbol]:
    return [argument for argument in call.inputs if isinstance(argument, Symbol)]


class LastRows:
    """A step whose last layer goes on behind its attention for the wanted tokens alone."""

    def __init__(self, step: Recording, lengths: Symbol, kernels: ProgramKernels) -> None:
        cut = cut_recording(step, lengths)
        self._lengths, self._inputs = step.inputs.index(lengths), cut.inputs
        self._before, self._after = kernels.program(cut.before), kernels.program(cut.after)
        # Block tables are of sequences, not of tokens.
        self._are_tables = [symbol.shape.count(ROWS) > 1 for symbol in cut.after.inputs]

    def run(self, step: Sequence[Array], wanted: IntArray | None) -> list[Array]:
        """The step's outputs for the wanted tokens, in that order; None for all."""
        lengths = step[self._lengths]
        seen = lengths
        if wanted is not None:
            seen = np.zeros_like(lengths)
            seen[wanted] = lengths[wanted]
        states = [*self._before.run([*step, seen]), *(step[place] for place in self._inputs)]
        if wanted is not None:
            marked = zip(states, self._are_tables, strict=True)
            states = [array if is_table else array[wanted] for array, is_table in marked]
        return self._after.run(states)


LENGTHS = Batch._fields.index("lengths")


@dataclass(frozen=True)
class StepRecordings:
    """Recordings of a model. The inputs of a step are the fields of a `Batch`, or of `PartArrays`.

    step: the hidden states of a step's tokens, or of a decoder's.
    head: their logits; None of a pipeline stage before the last, as is whole.
    whole: the hidden states and the logits of a step's tokens.
    encoder: of an encoder-decoder, whose whole is None.
    """

    step: Recording
    head: Recording | None = None
    whole: Recording | None = None
    encoder: Recording | None = None


class Programs(Protocol):
    """Programs that compute a model's steps; `StepPrograms` has the shapes."""

    @property
    def has_head(self) -> bool:
        """True if it gives logits."""
        ...

    def hidden(self, step: Sequence[IntArray], wanted: IntArray | None = None) -> FloatArray: ...

    def logits(self, hidden: FloatArray, adapters: IntArray | None) -> Logits: ...

    def hidden_and_logits(self, step: Sequence[IntArray]) -> tuple[FloatArray, Logits]: ...


class StepPrograms:
    """Each takes any number of tokens. Without a head (a pipeline stage before the last) there is one."""

    def __init__(self, recordings: StepRecordings, kernels: ProgramKernels) -> None:
        self._head: Runnable | None = None
        self._decoder: Runnable | LastRows
        step = kernels.lowered(recordings.step)
        if recordings.head is None or recordings.whole is None:
            self._decoder = kernels.program(step)
            return
        self._decoder = LastRows(step, step.inputs[LENGTHS], kernels)
        last = summarised(kernels.lowered(recordings.head))
        logits = [OutputMemory(symbol) for symbol in last.outputs]
        self._head = kernels.program(last, logits)
        whole = summarised(kernels.lowered(recordings.whole))
        hidden = OutputMemory(whole.outputs[0])
        self._whole = kernels.program(whole, [hidden, *logits])

    @property
    def has_head(self) -> bool:
        return self._head is not None

    def hidden(self, step: Sequence[IntArray], wanted: IntArray | None = None) -> FloatArray:
        """Hidden states [T, hidden_size] of the fields of a `Batch`, in its order.

        wanted: the tokens whose hidden states are given, in rising order; None for all, and without a head.
        """
        if isinstance(self._decoder, LastRows):
            return self._decoder.run(step, wanted)[0]
        return self._decoder.run(step)[0]

    def logits(self, hidden: FloatArray, adapters: IntArray | None) -> Logits:
        """Logits of hidden states [S, hidden_size] and, if any, the slots [S] of adapters."""
        assert self._head is not None
        return Logits(*self._head.run([hidden] if adapters is None else [hidden, adapters]))

    def hidden_and_logits(self, step: Sequence[IntArray]) -> tuple[FloatArray, Logits]:
        """Hidden states of all tokens of a step and their logits, as the two apart give them but at once."""
        assert self._head is not None
        hidden, *logits = self._whole.run(step)
        return hidden, Logits(*logits)


class EncoderDecoderPrograms:
    """Programs of a model with an encoder. A step has all tokens of an input or none."""

    has_head = True

    def __init__(self, recordings: StepRecordings, kernels: ProgramKernels) -> None:
        assert recordings.encoder is not None
        assert recordings.head is not None
        self._encoder, self._decoder = (
            kernels.program(kernels.lowered(recording)) for recording in (recordings.encoder, recordings.step)
        )
        self._head = kernels.program(summarised(kernels.lowered(recordings.head)))

    def hidden(self, step: Sequence[IntArray], wanted: IntArray | None = None) -> FloatArray:
        """The decoder's hidden states [T, hidden_size]; see `StepPrograms.hidden`.

        wanted: of tokens of the decoder alone; None where the step has no others.
        """
        hidden, _, decoded = self._computed(step)
        return hidden if wanted is None else hidden[np.searchsorted(decoded, wanted)]

    def logits(self, hidden: FloatArray, adapters: IntArray | None) -> Logits:
        return Logits(*self._head.run([hidden] if adapters is None else [hidden, adapters]))

    def hidden_and_logits(self, step: Sequence[IntArray]) -> tuple[FloatArray, Logits]:
        hidden, decoder, _ = self._computed(step)
        return hidden, self.logits(hidden, decoder.adapters)

    def _computed(self, step: Sequence[IntArray]) -> tuple[FloatArray, PartArrays, IntArray]:
        """The decoder's hidden states, its part of the step, and which of the step's tokens are in it."""
        encoder, decoder, decoded = encoder_and_decoder(step)
        if len(encoder.ids):
            self._encoder.run(encoder.arrays())
        [hidden] = self._decoder.run(decoder.arrays())
        return hidden, decoder, decoded


def programs_of(recordings: StepRecordings, kernels: ProgramKernels) -> Programs:
    """Makes the programs of a model's steps."""
    if recordings.encoder is None:
        return StepPrograms(recordings, kernels)
    return EncoderDecoderPrograms(recordings, kernels)
