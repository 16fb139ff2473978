"""A runner that tells the front which requests are in a step before it is computed."""

from __future__ import annotations

from mindbatch.engine.runner import StageRunner, StepOutput
from mindbatch.engine.step import Step
from mindbatch.engine.step_arrays import StepInputs
from mindbatch.replicas.front_link import FrontLink
from mindbatch.replicas.messages import BEGUN


class AnnouncingRunner:
    """If the process ends over a step, these are the requests that may be to blame."""

    def __init__(self, runner: StageRunner, link: FrontLink) -> None:
        self.vocab_size = runner.vocab_size
        self._runner = runner
        self._link = link
        self._told: dict[int, set[str]] = {}  # of the latest step, by its first block

    def run(self, step: Step) -> StepOutput:
        self._tell(step)
        return self._runner.run(step)

    def announce(self, step: Step, first_block: int = 0) -> StepInputs:
        self._tell(step, first_block)
        return self._runner.announce(step, first_block)

    def complete(self, inputs: StepInputs) -> StepOutput:
        return self._runner.complete(inputs)

    def _tell(self, step: Step, first_block: int = 0) -> None:
        keys = {tokens.group.request.key for tokens in step.scheduled}
        if new := keys - self._told.get(first_block, set()):
            self._link.send(BEGUN, keys=sorted(new))
        self._told[first_block] = keys
