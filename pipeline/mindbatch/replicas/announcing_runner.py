"""A runner that tells the front which requests are in a step before it is computed."""

from __future__ import annotations

from mindbatch.engine.runner import Runner, StepOutput
from mindbatch.engine.scheduler import Step
from mindbatch.replicas.front_link import FrontLink
from mindbatch.replicas.messages import BEGUN


class AnnouncingRunner:
    """If the process ends over a step, these are the requests that may be to blame."""

    def __init__(self, runner: Runner, link: FrontLink) -> None:
        self.vocab_size = runner.vocab_size
        self._runner = runner
        self._link = link
        self._told: set[str] = set()

    def run(self, step: Step) -> StepOutput:
        """See `Runner.run`."""
        keys = {tokens.group.request.key for tokens in step.scheduled}
        if new := keys - self._told:
            self._link.send(BEGUN, keys=sorted(new))
        self._told = keys
        return self._runner.run(step)
