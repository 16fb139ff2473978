"""A model's step and head as programs: what a step is run with where nothing is compiled."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mindbatch.kernels.arrays import Array, FloatArray
from mindbatch.kernels.interface import ProgramKernels, Runnable
from mindbatch.kernels.native_program import OutputMemory, summarised
from mindbatch.kernels.recording import ROWS, RecordedCall, Recording, Symbol
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

ATTENTION = ("attention", "mb_attention")
RECURRENT = ("causal_convolution", "gated_delta", "mb_causal_convolution", "mb_gated_delta")


def cut_recording(step: Recording, lengths: Symbol) -> tuple[Recording, Recording]:
    """Cuts a step's lowered recording. lengths: the input of how many positions each token sees.

    The first goes up to the last layer over sequences. If that is attention, it takes `lengths` of its own as
    one more input: a token that sees nothing is not attended for, though its keys and values are written.
    The second is the rest, which computes row by row from what the first gives, and from some of the step's
    inputs behind that; it may read caches that the first has written.
    """
    over_sequences = (*ATTENTION, *RECURRENT)
    last = max(index for index, call in enumerate(step.calls) if call.operation.startswith(over_sequences))
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
    return before, Recording([*before.outputs, *step_inputs], calls, step.outputs)


def _symbols(call: RecordedCall) -> list[Symbol]:
    return [argument for argument in call.inputs if isinstance(argument, Symbol)]


class LastRows:
    """A step whose last layer goes on behind its attention for the wanted tokens alone."""

    def __init__(self, step: Recording, lengths: Symbol, kernels: ProgramKernels) -> None:
        before, after = cut_recording(step, lengths)
        self._lengths = step.inputs.index(lengths)
        self._inputs = [step.inputs.index(symbol) for symbol in after.inputs if symbol in step.inputs]
        self._before, self._after = kernels.program(before), kernels.program(after)
        # Block tables are of sequences, not of tokens.
        self._are_tables = [symbol.shape.count(ROWS) > 1 for symbol in after.inputs]

    def run(self, step: Sequence[Array], wanted: IntArray | None) -> list[Array]:
        """The step's outputs for the wanted tokens, in that order; None for all."""
        lengths = step[self._lengths]
        seen = lengths
        if wanted is not None:
            seen = np.zeros_like(lengths)
            seen[wanted] = lengths[wanted]
        states = [*self._before.run([*step, seen]), *(step[index] for index in self._inputs)]
        if wanted is not None:
            marked = zip(states, self._are_tables, strict=True)
            states = [array if is_table else array[wanted] for array, is_table in marked]
        return self._after.run(states)


LENGTHS = Batch._fields.index("lengths")


@dataclass(frozen=True)
class StepRecordings:
    """Recordings of a model. The inputs of a step are the fields of a `Batch`.

    step: the hidden states of a step's tokens, or of a decoder's.
    head: their logits; None of a pipeline stage before the last, as is whole.
    whole: the hidden states and the logits of a step's tokens.
    encoder: of an encoder-decoder, whose whole is None.
    """

    step: Recording
    head: Recording | None = None
    whole: Recording | None = None
    encoder: Recording | None = None


class StepPrograms:
    """Computes a model's steps of any number of tokens, without padding.

    A pipeline stage before the last has no head: its values are the hidden states that it sends.
    """

    _head: Runnable

    def __init__(self, recordings: StepRecordings, kernels: ProgramKernels) -> None:
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

    def shape_of(self, spans: Sequence[Span], capacity: int) -> StepShape:
        return StepShape(ANY_STEP, sum(stop - start for start, stop in spans), len(spans))

    def run(self, inputs: StepInputs) -> StepValues:
        """The logits are those of the hidden states, to the bit, whether they come along or not."""
        if not isinstance(self._decoder, LastRows):
            return StepValues(self._decoder.run(inputs.arrays)[0])
        if inputs.with_logits:
            hidden, *logits = self._whole.run(inputs.arrays)
            return StepValues(hidden, Logits(*logits))
        return StepValues(self._decoder.run(inputs.arrays, inputs.wanted)[0], tokens=inputs.wanted)

    def project(self, hidden: FloatArray, adapters: IntArray | None) -> Logits:
        return Logits(*self._head.run([hidden] if adapters is None else [hidden, adapters]))


class EncoderDecoderPrograms(StepPrograms):
    """Programs of a model with an encoder. A step has all tokens of an input or none."""

    _decoder: Runnable

    def __init__(self, recordings: StepRecordings, kernels: ProgramKernels) -> None:
        assert recordings.encoder is not None
        assert recordings.head is not None
        self._encoder, self._decoder = (
            kernels.program(kernels.lowered(recording)) for recording in (recordings.encoder, recordings.step)
        )
        self._head = kernels.program(summarised(kernels.lowered(recordings.head)))

    def run(self, inputs: StepInputs) -> StepValues:
        """Hidden states of tokens of the decoder alone; all that are wanted are its."""
        encoder, decoder, decoded = encoder_and_decoder(inputs.arrays)
        if len(encoder.ids):
            self._encoder.run(encoder.arrays())
        [hidden] = self._decoder.run(decoder.arrays())
        if inputs.with_logits:
            return StepValues(hidden, self.project(hidden, decoder.adapters))
        if inputs.wanted is None:
            return StepValues(hidden)
        return StepValues(hidden[np.searchsorted(decoded, inputs.wanted)], tokens=inputs.wanted)


def programs_of(recordings: StepRecordings, kernels: ProgramKernels) -> StepPrograms:
    if recordings.encoder is None:
        return StepPrograms(recordings, kernels)
    return EncoderDecoderPrograms(recordings, kernels)
