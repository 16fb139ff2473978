"""Steps as programs: any number of tokens, nothing padded and nothing compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mindbatch.engine.step_arrays import FloatArray, StepInputs, StepValues
from mindbatch.kernels.step import ANY_STEP, IntArray, Logits, Span, StepShape

if TYPE_CHECKING:  # MindSpore, which records them
    from mindbatch.kernels.program.step import Programs


class RecordedSteps:
    """See `StepNetwork`."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs

    def shape_of(self, spans: Sequence[Span], capacity: int) -> StepShape:
        """See `StepNetwork.shape_of`."""
        return StepShape(ANY_STEP, sum(stop - start for start, stop in spans), len(spans))

    def run(self, inputs: StepInputs) -> StepValues:
        """See `StepNetwork.run`."""
        if not self._programs.has_head:
            return StepValues(self._programs.hidden(inputs.arrays))
        if inputs.with_logits:
            return StepValues(*self._programs.hidden_and_logits(inputs.arrays))
        return StepValues(self._programs.hidden(inputs.arrays, inputs.wanted), None, inputs.wanted)

    def project(self, hidden: FloatArray, adapters: IntArray | None) -> Logits:
        """See `StepNetwork.project`."""
        return self._programs.logits(hidden, adapters)
