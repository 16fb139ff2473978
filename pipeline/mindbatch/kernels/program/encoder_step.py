"""An encoder-decoder as programs: the inputs that begin in a step first, then all that is decoded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mindbatch.kernels.arrays import FloatArray
from mindbatch.kernels.layer import Operation
from mindbatch.kernels.native_library import NativeLibrary
from mindbatch.kernels.program.program import Program
from mindbatch.kernels.program.recording import ROWS, Recording, recorded
from mindbatch.kernels.program.step import recorded_head
from mindbatch.kernels.program.summary import summarised
from mindbatch.kernels.step import IntArray, Logits, PartArrays, encoder_and_decoder


class EncoderDecoderPrograms:
    """See `StepPrograms`. A step has all tokens of an input or none."""

    has_head = True

    def __init__(
        self,
        encoder: Operation,
        decoder: Operation,
        head: Operation,
        library: NativeLibrary,
        *,
        adapted: bool,
    ) -> None:
        """Those of `layers.encoder_decoder.EncoderDecoder`, made by the recorder's kernels.

        adapted: a step brings the slots of its tokens' adapters.
        """
        step = _recorded(decoder, adapted)
        [hidden] = step.outputs
        self._encoder, self._decoder = Program(_recorded(encoder, adapted), library), Program(step, library)
        self._head = Program(summarised(recorded_head(head, hidden.shape[1:], adapted=adapted)), library)

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


def _recorded(layers: Operation, adapted: bool) -> Recording:
    """Of the fields of `PartArrays`."""
    recording = Recording()
    ids, slots, rows = (recording.input((), np.int32) for _ in range(3))
    tables = recording.input((ROWS,), np.int32)
    lengths, firsts, positions = (recording.input((), np.int32) for _ in range(3))
    step = (slots, rows, tables, lengths, firsts, positions)
    adapters = (recording.input((), np.int32),) if adapted else ()
    return recorded(layers, recording, ids, positions, step, adapters)
