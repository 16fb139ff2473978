"""A step's recording cut behind its last attention: what follows is computed for some of the tokens only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mindbatch.kernels.arrays import Array
from mindbatch.kernels.interface import ProgramKernels
from mindbatch.kernels.recording import ROWS, RecordedCall, Recording, Symbol
from mindbatch.kernels.step import IntArray

ATTENTION = ("attention", "mb_attention")


@dataclass(frozen=True)
class CutRecording:
    """A step in two parts.

    before: up to the last attention, which takes `lengths` of its own as one more input: a token that sees
        nothing is not attended for, though its keys and values are written.
    after: the rest, which computes row by row from what `before` gives, and from those of the step's inputs
        whose places are `inputs`.
    """

    before: Recording
    after: Recording
    inputs: tuple[int, ...]


def cut_recording(step: Recording, lengths: Symbol) -> CutRecording:
    """Cuts a step's lowered recording. lengths: the input of how many positions each token sees."""
    last = max(place for place, call in enumerate(step.calls) if call.operation.startswith(ATTENTION))
    before = Recording([*step.inputs], step.calls[:last])
    seen = before.input((), lengths.dtype)
    attention = step.calls[last]
    others = tuple(seen if argument is lengths else argument for argument in attention.inputs)
    before.calls.append(replace(attention, inputs=others))
    calls = step.calls[last + 1 :]
    written = {symbol for call in calls for symbol in call.outputs}
    read = dict.fromkeys(symbol for call in calls for symbol in _symbols(call) if symbol not in written)
    assert all(symbol.shape.count(ROWS) == 1 for symbol in read), "behind attention tokens are rows"
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

    def run(self, step: Sequence[Array], wanted: IntArray | None) -> list[Array]:
        """The step's outputs for the wanted tokens, in that order; None for all."""
        lengths = step[self._lengths]
        seen = lengths
        if wanted is not None:
            seen = np.zeros_like(lengths)
            seen[wanted] = lengths[wanted]
        states = [*self._before.run([*step, seen]), *(step[place] for place in self._inputs)]
        return self._after.run(states if wanted is None else [array[wanted] for array in states])
