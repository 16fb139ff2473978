"""The leader's runner: every rank of a replica computes the steps that the leader's engine schedules."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from mindbatch.engine.batch import RunnerOutput
from mindbatch.engine.runner import StageRunner, StepOutput
from mindbatch.engine.step import Step
from mindbatch.io.errors import MindBatchError
from mindbatch.kernels.arrays import FloatArray
from mindbatch.kernels.step import IntArray, Logits, StepInputs, StepValues
from mindbatch.replicas.connection import Array, MessageConnection, MessageError
from mindbatch.replicas.front_link import FrontLink
from mindbatch.replicas.messages import BEGUN
from mindbatch.replicas.step_messages import (
    COMPARE,
    COMPARED_STEPS,
    COMPUTE,
    DIGEST,
    PROJECT,
    TokenDigest,
    step_parts,
)


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


class RankRunner(Protocol):
    """Runner of one rank's part of a step; `ModelRunner` is one."""

    vocab_size: int

    def prepare(self, step: Step, first_block: int = 0) -> StepInputs: ...

    def compute(self, inputs: StepInputs) -> StepValues: ...

    def project(self, hidden: FloatArray, adapters: IntArray | None = None) -> Logits: ...


class Followers:
    """The other ranks of a replica, which are told what the leader computes.

    Those of its own stage compute everything in the order in which it does. Those of earlier stages are
    told of steps before, when these are announced, and compute them in that order.

    connections: by local rank. comparing: those that have the logits, too, as the leader's stage has.
    """

    def __init__(self, connections: Mapping[int, MessageConnection], comparing: Collection[int]) -> None:
        self._connections = dict(connections)
        self._comparing = [*comparing]
        self._earlier = [rank for rank in connections if rank not in comparing]
        self.digest = TokenDigest()
        self._steps = 0

    def announce(self, runner: int, inputs: StepInputs) -> None:
        """Tells the stages before the leader's to compute a step; an assistant is on the leader's alone."""
        if runner == 0:
            fields, arrays = step_parts(inputs)
            self._tell(self._earlier, COMPUTE, arrays, runner=runner, **fields)

    def compute(self, runner: int, inputs: StepInputs) -> None:
        """Tells those of the leader's stage to compute a step; before every sixteenth digests are compared.

        Raises:
            MindBatchError: a rank has other tokens than this one.
        """
        if self._steps and self._steps % COMPARED_STEPS == 0:
            self._compare()
        self._steps += 1
        fields, arrays = step_parts(inputs)
        self._tell(self._comparing, COMPUTE, arrays, runner=runner, **fields)

    def project(self, runner: int, arrays: Sequence[Array]) -> None:
        """Tells those of the leader's stage to compute logits. arrays: as `RankRunner.project` takes them."""
        self._tell(self._comparing, PROJECT, arrays, runner=runner)

    def _compare(self) -> None:
        ours = self.digest.take()
        self._tell(self._comparing, COMPARE, [])
        differing = [rank for rank in self._comparing if self._digest_of(rank) != ours]
        if differing:
            ranks = ", ".join(map(str, differing))
            raise MindBatchError(
                f"ranks of one model differ: {ranks} of the replica computed other tokens than its leader in "
                f"steps {self._steps - COMPARED_STEPS + 1} to {self._steps}; what they were given is the "
                "same, so that memory, a device or the network between them is at fault"
            )

    def _digest_of(self, rank: int) -> str:
        message = self._connections[rank].receive()
        if message.kind != DIGEST:
            raise MessageError(
                f"local rank {rank} sent {message.kind!r} to its leader; expected is {DIGEST!r}"
            )
        return str(message.fields["digest"])

    def _tell(self, ranks: Collection[int], kind: str, arrays: Sequence[Array], **fields: object) -> None:
        for rank in ranks:
            self._connections[rank].send(kind, arrays, **fields)


class LeadingRunner:
    """A `StageRunner` whose steps all ranks compute; the leader's own part is computed here."""

    def __init__(self, runner: RankRunner, followers: Followers, number: int = 0) -> None:
        """`number`: of the runner among those of a rank, the model's and its assistant's."""
        self.vocab_size = runner.vocab_size
        self._runner = runner
        self._followers = followers
        self._number = number

    def run(self, step: Step) -> RunnerOutput:
        """Computes a step. Errors: see `complete`."""
        return self.complete(self.announce(step))

    def announce(self, step: Step, first_block: int = 0) -> StepInputs:
        """Sends the step to the followers. OSError: a follower has gone."""
        inputs = self._runner.prepare(step, first_block)
        self._followers.announce(self._number, inputs)
        return inputs

    def complete(self, inputs: StepInputs) -> RunnerOutput:
        """Computes the step with the followers.

        Raises:
            MindBatchError: ranks differ, see `Followers`.
            OSError: a follower has gone.
        """
        self._followers.compute(self._number, inputs)
        values = self._runner.compute(inputs)
        if values.logits is not None:
            self._followers.digest.add(values.logits.scores[: inputs.num_tokens])
        return RunnerOutput(values, self._project, inputs.adapters)

    def _project(self, hidden: FloatArray, adapters: IntArray | None = None) -> Logits:
        self._followers.project(self._number, [hidden] if adapters is None else [hidden, adapters])
        logits = self._runner.project(hidden, adapters)
        self._followers.digest.add(logits.scores)
        return logits
