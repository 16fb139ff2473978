"""The scheduler's promises under any load: order, budget, blocks, and an end."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from shadow_model import request
from shadow_model import settings as limits_of

from mindbatch.decoding import DecodingParams
from mindbatch.decoding.registry import strategy_for
from mindbatch.decoding.row import Draft, Row
from mindbatch.engine.scheduler import Scheduler
from mindbatch.engine.sequence import Sequence, SequenceGroup
from mindbatch.engine.step import Step
from mindbatch.io.errors import CacheBudgetError


def group_of(
    key: str, prompt: int, new: int, samples: int = 1, token: int | None = None, drafted: int = 0
) -> SequenceGroup:
    """A request of `prompt` tokens that will be given `new` tokens in each of `samples` sequences.

    token: what the prompt repeats; by default no other key has it.
    drafted: most tokens that are drafted for a step.
    """
    sampling = {"do_sample": True, "num_return_sequences": samples} if samples > 1 else {}
    tokens = [ord(key[0]) if token is None else token] * prompt
    asked = request(key, tokens, max_new_tokens=new, num_assistant_tokens=drafted, **sampling)
    row = Row(asked.params, asked.prompt_token_ids, [], (), 0)
    return SequenceGroup(asked, strategy_for(DecodingParams(**sampling)), [Sequence(row, None)], prompt + new)


def key_of(group: SequenceGroup) -> str:
    return group.request.key


class Load(RuleBasedStateMachine):
    """Requests come at any time; each step, sampled sequences get a token, fork and end as an engine's do."""

    @initialize(
        batch_size=st.integers(1, 5),
        block_size=st.integers(1, 4),
        num_blocks=st.integers(4, 24),
        budget=st.integers(3, 12),
        prompts=st.none() | st.integers(1, 12),
        use_past=st.booleans(),
        prefix_caching=st.booleans(),
    )
    def begin(
        self,
        batch_size: int,
        block_size: int,
        num_blocks: int,
        budget: int,
        prompts: int | None,
        use_past: bool,
        prefix_caching: bool,
    ) -> None:
        self.limits = limits_of(
            batch_size=batch_size,
            block_size=block_size,
            num_blocks=num_blocks,
            max_batched_tokens=budget,
            max_prompt_tokens=prompts,
            use_past=use_past,
            prefix_caching=prefix_caching,
        )
        self.scheduler = Scheduler(self.limits)
        self.added: list[str] = []
        self.admitted: list[str] = []
        self.done: set[str] = set()

    @rule(
        prompt=st.integers(1, 12),
        new=st.integers(1, 6),
        samples=st.integers(1, 3),
        token=st.integers(1, 2),
        drafted=st.integers(0, 3),
    )
    def add(self, prompt: int, new: int, samples: int, token: int, drafted: int) -> None:
        key = str(len(self.added))
        try:
            self.scheduler.add(group_of(key, prompt, new, samples, token, drafted))
        except CacheBudgetError:
            blocks = samples * self.limits.blocks_for(prompt + new)
            most = samples * (1 + drafted)
            assert blocks > self.limits.num_blocks or most > self.limits.max_batched_tokens
        else:
            self.added.append(key)

    @precondition(lambda self: self.scheduler.has_work)
    @rule(accepted=st.integers(0, 3))
    def step(self, accepted: int = 0) -> None:
        """accepted: of each draft, if it is as long."""
        self._draft()
        waiting = [key_of(group) for group in self.scheduler.waiting]
        step = self.scheduler.schedule()
        self._check(step, waiting)
        self.scheduler.complete(step)
        sampled = {id(tokens.group): tokens.group for tokens in step.scheduled if tokens.num_logits}
        for group in sampled.values():
            self._sample(group, accepted)
        self.done |= {key_of(group) for group in self.scheduler.forget_finished()}

    def _draft(self) -> None:
        for group in self.scheduler.running:
            for sequence in group.sequences:
                room = group.max_tokens - len(sequence) - 1
                count = min(group.request.params.num_assistant_tokens, room)
                if count and group.has_output and group.is_decoding and sequence.row.draft is None:
                    sequence.row.draft = Draft((3,) * count)

    def _check(self, step: Step, waiting: list[str]) -> None:
        assert step.scheduled
        assert step.num_tokens == sum(tokens.stop - tokens.start for tokens in step.scheduled)
        assert step.num_tokens <= self.limits.max_batched_tokens
        for tokens in step.scheduled:
            whole = len(tokens.sequence) + tokens.sequence.num_draft_tokens
            assert tokens.start == tokens.sequence.num_computed_tokens < tokens.stop <= whole
            assert tokens.num_logits in (0, 1 + tokens.sequence.num_draft_tokens)
            assert tokens.stop == whole if tokens.num_logits else tokens.stop < len(tokens.sequence)
            assert len(tokens.sequence.block_table) * self.limits.block_size >= tokens.stop
            written = tokens.sequence.block_table[tokens.start // self.limits.block_size :]
            assert all(self.scheduler.blocks.holders(block) == 1 for block in written)
        self._check_groups(step)
        seats = sum(group.max_num_sequences for group in self.scheduler.running)
        assert seats <= self.limits.batch_size or len(self.scheduler.running) == 1
        fresh = [key_of(t.group) for t in step.scheduled if key_of(t.group) in waiting]
        order = list(dict.fromkeys(fresh))
        assert order == waiting[: len(order)], "somebody was admitted out of turn"

    def _check_groups(self, step: Step) -> None:
        """The rows of a group stand together, and all of its sequences sample or none."""
        groups = [id(tokens.group) for tokens in step.scheduled]
        assert len(list(dict.fromkeys(groups))) == 1 + sum(
            a != b for a, b in zip(groups, groups[1:], strict=False)
        )
        samples = Counter(id(tokens.group) for tokens in step.scheduled if tokens.num_logits)
        for tokens in step.scheduled:
            assert samples[id(tokens.group)] in (0, len(tokens.group.sequences))

    def _sample(self, group: SequenceGroup, accepted: int) -> None:
        if not group.has_output:
            first = group.sequences[0]
            count = group.request.params.num_return_sequences
            group.sequences += [self.scheduler.fork(first) for _ in range(count - 1)]
        for sequence in list(group.sequences):
            kept = min(accepted, sequence.num_draft_tokens)
            sequence.row.draft = None
            sequence.row.output_token_ids += [3] * kept + [2]
            sequence.num_computed_tokens += kept
            if not self.limits.use_past:
                sequence.num_computed_tokens = 0
            if len(sequence) == group.max_tokens:
                sequence.finish_reason = "length"
                group.finished.append(sequence.output())
                group.sequences.remove(sequence)
                self.scheduler.release([sequence])

    @precondition(lambda self: self.scheduler.has_work)
    @rule()
    def abort(self) -> None:
        self.scheduler.abort()
        assert not self.scheduler.has_work
        assert self.scheduler.blocks.num_free == self.limits.num_blocks
        self.done.update(self.added)

    @invariant()
    def no_block_is_lost_or_owned_twice(self) -> None:
        groups = [*self.scheduler.running, *self.scheduler.waiting]
        tables = [sequence.block_table for group in groups for sequence in group.sequences]
        held = Counter(block for table in tables for block in table)
        manager = self.scheduler.blocks
        assert all(manager.holders(block) == held[block] for block in range(self.limits.num_blocks))
        assert manager.num_free == self.limits.num_blocks - len(held)

    @invariant()
    def requests_share_what_both_have_computed(self) -> None:
        size = self.limits.block_size
        owners: dict[int, dict[int, tuple[int, ...]]] = {}
        for group in self.scheduler.running:
            for sequence in group.sequences:
                for index, block in enumerate(sequence.block_table):
                    stop = min((index + 1) * size, sequence.num_computed_tokens)
                    owners.setdefault(block, {})[id(group)] = tuple(sequence.tokens(0, stop))
        for prefixes in owners.values():
            if len(prefixes) > 1:
                assert self.limits.prefix_caching
                assert self.limits.use_past
                assert len(set(prefixes.values())) == 1
                assert all(len(prefix) % size == 0 for prefix in prefixes.values())

    def teardown(self) -> None:
        """Whatever the load was, it ends."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(5000):
            if not self.scheduler.has_work:
                break
            self.step()
        assert not self.scheduler.has_work
        assert self.done == set(self.added)
        assert self.scheduler.blocks.num_free == self.limits.num_blocks


TestLoad = Load.TestCase
TestLoad.settings = settings(stateful_step_count=30)


def complete(scheduler: Scheduler) -> Step:
    """One step in which every sampling sequence gets a token."""
    step = scheduler.schedule()
    scheduler.complete(step)
    for tokens in step.scheduled:
        if tokens.num_logits:
            tokens.sequence.row.output_token_ids.append(2)
    return step


def shown(step: Step) -> list[tuple[str, int, int, bool]]:
    return [(key_of(t.group), t.start, t.stop, bool(t.num_logits)) for t in step.scheduled]


def test_decoding_goes_first_and_prompts_fill_up() -> None:
    scheduler = Scheduler(limits_of(max_batched_tokens=5))
    scheduler.add(group_of("a", 3, 9))
    scheduler.add(group_of("b", 8, 9))
    scheduler.add(group_of("c", 2, 9))
    assert shown(complete(scheduler)) == [("a", 0, 3, True), ("b", 0, 2, False)]
    assert shown(complete(scheduler)) == [("a", 3, 4, True), ("b", 2, 6, False)]
    assert shown(complete(scheduler)) == [("a", 4, 5, True), ("b", 6, 8, True), ("c", 0, 2, True)]
    assert shown(complete(scheduler)) == [("a", 5, 6, True), ("b", 8, 9, True), ("c", 2, 3, True)]


def test_prompts_take_no_more_of_a_step_than_they_may() -> None:
    scheduler = Scheduler(limits_of(max_batched_tokens=4, max_prompt_tokens=2))
    scheduler.add(group_of("a", 3, 9))
    scheduler.add(group_of("b", 8, 9))
    assert shown(complete(scheduler)) == [("a", 0, 2, False)]
    assert shown(complete(scheduler)) == [("a", 2, 3, True), ("b", 0, 2, False)]
    assert shown(complete(scheduler)) == [("a", 3, 4, True), ("b", 2, 4, False)]


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_the_last_come_is_preempted_and_comes_back(prefix_caching: bool) -> None:
    scheduler = Scheduler(limits_of(block_size=2, num_blocks=4, prefix_caching=prefix_caching))
    first, second = group_of("a", 4, 4), group_of("b", 4, 4)
    scheduler.add(first)
    scheduler.add(second)
    complete(scheduler)
    assert shown(complete(scheduler)) == [("a", 4, 5, True)]
    assert scheduler.num_preemptions == 1
    assert second.sequences[0].block_table == []
    scheduler.release(first.sequences)
    first.sequences.clear()
    scheduler.forget_finished()
    begins = 2 if prefix_caching else 0  # of its two blocks the second was handed out meanwhile
    assert shown(complete(scheduler)) == [("b", begins, 5, True)]


def test_the_preempted_whose_tokens_are_found_verifies_its_draft_where_prompts_have_less_room() -> None:
    load = Load()
    load.begin(2, block_size=1, num_blocks=4, budget=3, prompts=1, use_past=True, prefix_caching=True)
    load.add(prompt=2, new=2, samples=1, token=1, drafted=0)
    load.add(prompt=1, new=3, samples=1, token=1, drafted=1)
    while load.scheduler.has_work:
        load.step()
    assert load.scheduler.num_preemptions == 1


def test_samples_that_just_fit_are_not_preempted() -> None:
    """Three samples of a two-token prompt in three blocks: the last one writes the shared block in place."""
    scheduler = Scheduler(limits_of(block_size=4, num_blocks=3))
    group = group_of("a", 2, 2, samples=3)
    scheduler.add(group)
    complete(scheduler)
    parent = group.sequences[0]
    group.sequences += [scheduler.fork(parent) for _ in range(2)]
    assert shown(complete(scheduler)) == [("a", 2, 3, True)] * 3
    assert scheduler.num_preemptions == 0


def test_more_samples_than_seats_run_alone() -> None:
    scheduler = Scheduler(limits_of(batch_size=2))
    scheduler.add(group_of("a", 2, 3))
    scheduler.add(group_of("wide", 2, 3, samples=3))
    scheduler.add(group_of("b", 2, 3))
    assert [row[0] for row in shown(complete(scheduler))] == ["a"]
    scheduler.running[0].sequences.clear()
    scheduler.forget_finished()
    assert [row[0] for row in shown(complete(scheduler))] == ["wide"]


@pytest.mark.parametrize(
    ("changes", "samples", "numbers"),
    [
        ({"num_blocks": 4}, 1, ["1 x 20 tokens", "5 cache blocks of 4", "holds 4"]),
        ({"num_blocks": 14}, 3, ["3 x 20 tokens", "15 cache blocks of 4", "holds 14"]),
        ({"max_batched_tokens": 2}, 3, ["3 sequences", "3 tokens in a step", "max_batched_tokens=2"]),
    ],
)
def test_what_can_never_fit_is_refused_with_the_numbers(
    changes: dict[str, int], samples: int, numbers: list[str]
) -> None:
    scheduler = Scheduler(limits_of(**changes))
    with pytest.raises(CacheBudgetError) as refused:
        scheduler.add(group_of("row-7", 12, 8, samples))
    assert len(refused.value.lines) == 1
    assert all(part in str(refused.value) for part in ["row-7", *numbers])
    assert not scheduler.has_work


def test_the_preempted_come_before_those_still_waiting() -> None:
    scheduler = Scheduler(limits_of(block_size=2, num_blocks=6, batch_size=3))
    for key in "abcd":
        scheduler.add(group_of(key, 4, 4))
    complete(scheduler)
    complete(scheduler)
    assert scheduler.num_preemptions == 1
    assert [key_of(group) for group in scheduler.running] == ["a", "b"]
    assert [key_of(group) for group in scheduler.waiting] == ["c", "d"]
