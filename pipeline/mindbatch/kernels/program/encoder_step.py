"""An encoder-decoder as programs: the inputs that begin in a step first, then all that is decoded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mindbatch.kernels.arrays import FloatArray
from mindbatch.kernels.interface import ProgramKernels
from mindbatch.kernels.program.step import Programs, StepPrograms, StepRecordings
from mindbatch.kernels.program.summary import summarised
from mindbatch.kernels.step import IntArray, Logits, PartArrays, encoder_and_decoder


class EncoderDecoderPrograms:
    """See `StepPrograms`. A step has all tokens of an input or none."""

    has_head = True

    def __init__(self, recordings: StepRecordings, kernels: ProgramKernels) -> None:
        assert recordings.encoder is not None
        assert recordings.head is not None
        self._encoder, self._decoder = (
            kernels.program(kernels.lowered(each)) for each in (recordings.encoder, recordings.step)
        )
        self._head = kernels.program(summarised(kernels.lowered(recordings.head)))

    def hidden(self, step: Sequence[IntArray], wanted: IntArray | None = None) -> FloatArray:
        """The decoder's hidden states [T, hidden_size]; see `StepPrograms.hidden`.

        wanted: of tokens of the decoder alone; None where the step has no others.
        """
        hidden, _, decoded = self._computed(step)
        return hidden if wanted is None else hidden[np.searchsorted(decoded, wanted)]

    def logits(self, hidden: FloatArray, adapters: IntArray | None) -> Logits:
        """See `StepPrograms.logits`."""
        return Logits(*self._head.run([hidden] if adapters is None else [hidden, adapters]))

    def hidden_and_logits(self, step: Sequence[IntArray]) -> tuple[FloatArray, Logits]:
        """See `StepPrograms.hidden_and_logits`."""
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
    """What runs a model's steps."""
    if recordings.encoder is None:
        return StepPrograms(recordings, kernels)
    return EncoderDecoderPrograms(recordings, kernels)
