"""Steps that all ranks of a replica compute: how its followers find the leader, and the messages that they
get."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from mindbatch.engine.step import RunnerOutput, Step
from mindbatch.io.errors import MindBatchError
from mindbatch.kernels.arrays import FloatArray
from mindbatch.kernels.step import IntArray, Logits, StepInputs
from mindbatch.parallel.connection import (
    Address,
    Array,
    JobListener,
    MessageConnection,
    MessageError,
    RankMessage,
    connect,
)

if TYPE_CHECKING:
    from mindbatch.engine.model_runner import ModelRunner

FOLLOWER = "follower"
"""The first message on such a connection: the local rank that follows."""


def accept_followers(
    host: str, key: bytes, ranks: Collection[int], announce: Callable[[Address], object]
) -> dict[int, MessageConnection]:
    """Listens until all of the local ranks have connected; returns the connections by rank.

    announce: called with the address of this process.
    """
    arrived: SimpleQueue[tuple[int, MessageConnection]] = SimpleQueue()

    def take(connection: MessageConnection) -> None:
        with suppress(EOFError, OSError, MessageError):
            first = connection.receive()
            if first.kind == FOLLOWER and first.fields.get("rank") in ranks:
                arrived.put((first.fields["rank"], connection))
                return
        connection.close()

    listener = JobListener(host, key, take)
    try:
        announce(listener.address)
        connections: dict[int, MessageConnection] = {}
        while len(connections) < len(ranks):
            rank, connection = arrived.get()
            connections[rank] = connection
        return connections
    finally:
        listener.close()


def connect_to_leader(address: Address, key: bytes, rank: int) -> MessageConnection:
    """Returns the connection of a local rank to the leader of its replica. OSError if nobody of the job
    listens."""
    connection = connect(address, key)
    connection.send(FOLLOWER, rank=rank)
    return connection


def own_address(towards: Address) -> str:
    """Returns the address of this host from which it reaches another process."""
    family = socket.AF_INET6 if ":" in towards[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:  # nothing is sent
        probe.connect(towards)
        return str(probe.getsockname()[0])


COMPUTE, PROJECT, COMPARE, DIGEST = "compute", "project", "compare", "digest"
"""From the leader: COMPUTE a step, PROJECT hidden states to logits, COMPARE; from a follower DIGEST."""


def step_parts(inputs: StepInputs) -> tuple[dict[str, Any], list[Array]]:
    fields = {"graph": inputs.graph, "tokens": inputs.num_tokens, "with_logits": inputs.with_logits}
    if inputs.adapter_loads:
        fields["adapter_loads"] = inputs.adapter_loads
    if inputs.state_copies:
        fields["state_copies"] = inputs.state_copies
    copies = np.asarray(inputs.copies, np.int32).reshape(-1, 2)
    if inputs.wanted is None:
        return fields, [copies, *inputs.arrays]
    return {**fields, "some_wanted": True}, [copies, inputs.wanted, *inputs.arrays]


def step_of(fields: Mapping[str, Any], arrays: list[Array]) -> StepInputs:
    copies, *others = arrays
    # In memory of their own: those of a message begin at any byte, and MindSpore shares memory.
    rest = [np.array(array, np.int32) for array in others]
    wanted = rest.pop(0) if fields.get("some_wanted") else None
    return StepInputs(
        graph=fields["graph"],
        arrays=tuple(rest),
        copies=tuple((int(source), int(target)) for source, target in copies),
        num_tokens=fields["tokens"],
        with_logits=fields["with_logits"],
        adapter_loads=tuple((slot, name) for slot, name in fields.get("adapter_loads", ())),
        wanted=wanted,
        state_copies=tuple((source, target) for source, target in fields.get("state_copies", ())),
    )


COMPARED_STEPS = 16
"""Ranks compare their digests after so many steps."""


class TokenDigest:
    """Digest of the likeliest token of each row of logits since the last comparison."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, logits: FloatArray) -> None:
        """`logits`: [rows, vocabulary]."""
        self._hash.update(logits.argmax(-1).astype(np.int32).tobytes())

    def take(self) -> str:
        """Returns the digest, and begins another."""
        digest, self._hash = self._hash.hexdigest(), hashlib.sha256()
        return digest


class Followers:
    """The other ranks of a replica, which compute the leader's steps.

    Ranks of the leader's stage compute everything in the order of the leader. Ranks of earlier stages get a
    step when it is announced, and compute the steps in that order.

    connections: connections by local rank. comparing: the ranks of the leader's stage, which have the logits.
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
        """Tells those of the leader's stage to compute logits. arrays: of `ModelRunner.project`."""
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
                "same, so that memory, a device or the network between them is wrong"
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

    def __init__(self, runner: ModelRunner, followers: Followers, number: int = 0) -> None:
        """`number`: of the runner among those of a rank, the model's and its assistant's."""
        self.vocab_size = runner.vocab_size
        self._runner = runner
        self._followers = followers
        self._number = number

    def run(self, step: Step) -> RunnerOutput:
        """Computes a step. Errors: see `complete`."""
        return self.complete(self.announce(step))

    def announce(self, step: Step) -> StepInputs:
        """Sends the step to the followers. OSError: a follower has gone."""
        inputs = self._runner.prepare(step)
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


def follow(
    leader: MessageConnection,
    runners: Sequence[ModelRunner],
    on_step: Callable[[bool], object] = lambda computes: None,
) -> NoReturn:
    """Computes what the leader of a replica says until its connection ends; does not return.

    runners: of this rank, by number. on_step: called with True before a step and with False after it.

    Raises:
        EOFError, OSError: the leader has gone.
        MessageError: it said something that is not understood.
    """
    digest = TokenDigest()
    while True:
        message = leader.receive()
        on_step(True)
        if message.kind == COMPARE:
            leader.send(DIGEST, digest=digest.take())
        else:
            _compute(message, runners, digest)
        on_step(False)


def _compute(message: RankMessage, runners: Sequence[ModelRunner], digest: TokenDigest) -> None:
    if message.kind == COMPUTE:
        inputs = step_of(message.fields, message.arrays)
        values = _runner(message, runners).compute(inputs)
        if values.logits is not None:
            digest.add(values.logits.scores[: inputs.num_tokens])
    elif message.kind == PROJECT:
        hidden, *adapters = map(np.array, message.arrays)
        digest.add(_runner(message, runners).project(hidden, *adapters).scores)
    else:
        raise MessageError(f"the leader sent {message.kind!r}, which a follower does not understand")


def _runner(message: RankMessage, runners: Sequence[ModelRunner]) -> ModelRunner:
    number = message.fields["runner"]
    if not isinstance(number, int) or not 0 <= number < len(runners):
        raise MessageError(f"the leader named runner {number!r}; this rank has {len(runners)}")
    return runners[number]
