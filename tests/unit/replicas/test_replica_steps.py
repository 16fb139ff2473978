"""A leader and its followers: the same steps for all, digests that agree, an error when they do not."""

import json
import threading
from collections.abc import Iterator
from multiprocessing import Pipe

import numpy as np
import pytest

from mindbatch.engine.step import Step
from mindbatch.io.errors import MindBatchError
from mindbatch.kernels.arrays import FloatArray
from mindbatch.kernels.step import IntArray, Logits, StepInputs, StepValues
from mindbatch.parallel.connection import MessageConnection, MessageError
from mindbatch.replicas.replica_steps import (
    COMPARED_STEPS,
    Followers,
    LeadingRunner,
    follow,
    step_of,
    step_parts,
)

VOCABULARY = 5


class CountingRunner:
    """Logits that depend on the ids and on the step; keeps what it was given."""

    vocab_size = VOCABULARY

    def __init__(self, wrong_from: int | None = None) -> None:
        self.seen: list[StepInputs] = []
        self.projected: list[FloatArray] = []
        self.wrong_from = wrong_from

    def prepare(self, step: Step) -> StepInputs:
        ids = np.arange(4, dtype=np.int32) + step.num_tokens
        return StepInputs("any", (ids, ids[::-1]), ((1, 2), (3, 4)), 3, step.num_tokens % 2 == 0)

    def compute(self, inputs: StepInputs) -> StepValues:
        self.seen.append(inputs)
        hidden = np.repeat(inputs.arrays[0][:, None], VOCABULARY, 1).astype(np.float32)
        return StepValues(hidden, self.project(hidden) if inputs.with_logits else None)

    def project(self, hidden: FloatArray, adapters: IntArray | None = None) -> Logits:
        self.projected.append(hidden)
        wrong = self.wrong_from is not None and len(self.seen) >= self.wrong_from
        tokens = (hidden[:, 0].astype(int) + len(self.seen) + wrong) % VOCABULARY
        return Logits(np.eye(VOCABULARY, dtype=np.float32)[tokens])


class Group:
    """A leader over followers that obey in threads."""

    def __init__(self, *followers: CountingRunner, comparing: int | None = None) -> None:
        self.own, self.others = CountingRunner(), followers
        self.ends: list[MessageConnection] = []
        self.raised: list[Exception] = []
        connections = {}
        for rank, runner in enumerate(followers, 1):
            ours, theirs = map(MessageConnection, Pipe())
            connections[rank] = ours
            self.ends += [ours, theirs]
            threading.Thread(target=self._follow, args=(theirs, runner), daemon=True).start()
        compared = range(1, 1 + (len(followers) if comparing is None else comparing))
        self.followers = Followers(connections, compared)
        self.connections = connections
        self.runner = LeadingRunner(self.own, self.followers)

    def _follow(self, leader: MessageConnection, runner: CountingRunner) -> None:
        try:
            follow(leader, [runner, runner])
        except Exception as error:
            self.raised.append(error)

    def run(self, steps: int) -> None:
        for number in range(steps):
            output = self.runner.run(Step(num_tokens=number))
            assert output.logits([0, 2]).shape == (2, VOCABULARY)

    def close(self) -> None:
        for end in self.ends:
            end.close()


@pytest.fixture
def groups() -> Iterator[list[Group]]:
    made: list[Group] = []
    yield made
    for group in made:
        group.close()


def test_followers_compute_what_the_leader_computes(groups: list[Group]) -> None:
    groups.append(group := Group(CountingRunner(), CountingRunner()))
    group.run(COMPARED_STEPS + 1)
    group.run(COMPARED_STEPS)  # their answer to the second comparison is behind all steps before it
    for other in group.others:
        for ours, theirs in zip(group.own.seen[:COMPARED_STEPS], other.seen, strict=False):
            assert (ours.graph, ours.copies, ours.num_tokens) == (
                theirs.graph,
                theirs.copies,
                theirs.num_tokens,
            )
            for left, right in zip(ours.arrays, theirs.arrays, strict=True):
                np.testing.assert_array_equal(left, right)
                assert right.dtype == np.int32
                assert right.flags.writeable
        assert [len(each) for each in other.projected[:8]] == [len(each) for each in group.own.projected[:8]]


def test_a_rank_with_other_tokens_ends_the_replica(groups: list[Group]) -> None:
    groups.append(group := Group(CountingRunner(), CountingRunner(wrong_from=COMPARED_STEPS + 3)))
    group.run(2 * COMPARED_STEPS)
    with pytest.raises(MindBatchError, match=r"ranks of one model differ: 2 of the replica .* 17 to 32;"):
        group.run(1)


def test_stages_before_are_told_of_a_step_at_once_and_the_own_one_in_its_turn() -> None:
    ends = {rank: tuple(map(MessageConnection, Pipe())) for rank in (0, 3)}
    followers = Followers({rank: ours for rank, (ours, _) in ends.items()}, comparing=[3])
    main, drafting = (LeadingRunner(CountingRunner(), followers, number) for number in range(2))
    first, second = (main.announce(Step(num_tokens=count)) for count in (2, 42))
    drafting.run(Step(num_tokens=2))  # of the leader's stage alone
    main.complete(first)
    main.complete(second)
    told = {rank: [theirs.receive() for _ in range(2 + (rank == 3))] for rank, (_, theirs) in ends.items()}
    assert [message.fields["runner"] for message in told[0]] == [0, 0]
    assert [message.fields["runner"] for message in told[3]] == [1, 0, 0]
    firsts = [step_of(message.fields, message.arrays).arrays[0][0] for message in told[0]]
    assert firsts == [2, 42]
    for ours, theirs in ends.values():
        ours.close()
        theirs.close()


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [("dance", {}, "sent 'dance'"), ("project", {"runner": 2}, "named runner 2; this rank has 2")],
)
def test_a_follower_refuses_what_it_does_not_understand(
    kind: str, fields: dict[str, int], message: str
) -> None:
    ours, theirs = map(MessageConnection, Pipe())
    ours.send(kind, [np.zeros((1, 2), np.float32)], **fields)
    with pytest.raises(MessageError, match=message):
        follow(theirs, [CountingRunner(), CountingRunner()])


IDS = np.arange(4, dtype=np.int32)


@pytest.mark.parametrize(
    "step",
    [
        StepInputs("chunks", (np.zeros((2, 0), np.int32), np.ones(3, np.int32)), (), 1, True),
        StepInputs("any", (), ((1, 2),), 1, False, adapter_loads=((2, "law"), (1, "med"))),
        StepInputs("any", (IDS,), ((1, 2),), 4, False, wanted=IDS[1::2]),
        StepInputs("any", (IDS,), ((1, 2),), 4, False, wanted=IDS[:0]),
    ],
)
def test_a_step_is_what_it_was_after_its_way(step: StepInputs) -> None:
    """Without copies, or with adapters that are loaded before, or of which some tokens are wanted."""
    fields, arrays = step_parts(step)
    assert ("adapter_loads" in fields) == bool(step.adapter_loads)
    same = step_of(json.loads(json.dumps(fields)), arrays)
    names = ("graph", "copies", "num_tokens", "with_logits", "adapter_loads")
    assert [getattr(same, name) for name in names] == [getattr(step, name) for name in names]
    assert (same.wanted is None) == (step.wanted is None)
    if same.wanted is not None and step.wanted is not None:
        np.testing.assert_array_equal(same.wanted, step.wanted)
    for ours, theirs in zip(step.arrays, same.arrays, strict=True):
        np.testing.assert_array_equal(ours, theirs)
