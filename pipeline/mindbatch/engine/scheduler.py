"""Which tokens of which sequences make up the next step: policy only, no tensors."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from itertools import islice

from mindbatch.engine.adapter_slots import AdapterSlots
from mindbatch.engine.block_manager import BlockManager
from mindbatch.engine.prefix_cache import PrefixCache
from mindbatch.engine.sequence import Sequence, SequenceGroup
from mindbatch.engine.settings import EngineSettings
from mindbatch.errors import CacheBudgetError

LOOK_AHEAD = 256
"""Waiting requests among which one is sought that has a slot for its adapter."""


@dataclass(slots=True)
class ScheduledTokens:
    """Positions start .. stop - 1 of one sequence; the logits of the last `num_logits` are wanted.

    adapter: the slot of the adapter that they are computed with; 0 is the base.
    """

    group: SequenceGroup
    sequence: Sequence
    start: int
    stop: int
    num_logits: int
    adapter: int = 0

    @property
    def num_encoder_tokens(self) -> int:
        """How many of them, the first ones, are of an encoder's input, of which nothing is read off."""
        return max(0, min(self.sequence.num_encoder_tokens, self.stop) - self.start)


@dataclass(slots=True)
class Step:
    """One step of the engine: its tokens, and the cache blocks to copy before it runs.

    adapter_loads: slots, and the names of the adapters to load into them before it runs.
    filled: the blocks that are full after the step, by the digest of what they then hold.
    """

    scheduled: list[ScheduledTokens] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    adapter_loads: list[tuple[int, str]] = field(default_factory=list)
    filled: dict[bytes, int] = field(default_factory=dict)
    num_tokens: int = 0


class Scheduler:
    """Continuous batching, first come first served.

    Every step takes one token of each sequence that is generating, then fills up with chunks of prompts.
    When blocks run out, the request that came last is pre-empted: its blocks are freed and it is computed
    again later. A request is admitted only if it fits the cache alone, so the first one always moves on.
    Blocks at the beginning of a request that are in the cache already are shared, not computed.
    A request for whose adapter there is no slot is passed by those that need none or have one; see
    `AdapterSlots`.

    num_prompt_tokens, num_cached_tokens: of all requests admitted so far, and those of them that were found.
    """

    def __init__(self, settings: EngineSettings, adapters: AdapterSlots | None = None) -> None:
        """`adapters`: shared by all schedulers of a model; None where requests have no adapters."""
        self.settings = settings
        self.adapters = adapters
        self.blocks = BlockManager(settings.num_blocks, settings.block_size)
        self.prefixes = PrefixCache(self.blocks, settings)
        self.waiting: deque[SequenceGroup] = deque()
        self.running: list[SequenceGroup] = []
        self.num_preemptions = 0
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    @property
    def num_sequences(self) -> int:
        """Sequences of all requests, waiting or running, when each has as many as it may have."""
        return sum(group.max_num_sequences for group in (*self.waiting, *self.running))

    def add(self, group: SequenceGroup) -> None:
        """Queues a request.

        Raises:
            CacheBudgetError: it could not run even with the whole cache or the whole step to itself.
        """
        self._refuse_impossible(group)
        self.waiting.append(group)

    def schedule(self) -> Step:
        """Chooses the next step's tokens and takes the blocks they need.

        There are none only where nothing runs and other schedulers hold all slots for adapters.
        """
        step = Step()
        preemptions = self.num_preemptions
        decoding, others = list[SequenceGroup](), list[SequenceGroup]()
        for group in self.running:
            (decoding if group.is_decoding else others).append(group)
        for group in decoding:
            if self._still_runs(group, preemptions):
                self._schedule_running(group, step, self.settings.max_batched_tokens)
        most = self._most_with_prompts(step)
        for group in others:
            if self._still_runs(group, preemptions):
                self._schedule_running(group, step, most)
        if self.num_preemptions == preemptions:
            self._admit(step, most)
        assert step.scheduled or not (self.running or self.waiting and self.adapters is None)
        return step

    def complete(self, step: Step) -> None:
        """Records that the step's tokens are in the cache, and that its full blocks may be shared."""
        for tokens in step.scheduled:
            # What was drafted is computed, but counts only once it has been accepted.
            tokens.sequence.num_computed_tokens = min(tokens.stop, len(tokens.sequence))
        for digest, block in step.filled.items():
            self.blocks.register(block, digest)

    def distrust_loads(self, step: Step) -> None:
        """The step failed: the adapters that it was to load may not be in their slots."""
        if self.adapters is not None:
            for _, name in step.adapter_loads:
                self.adapters.distrust(name)

    def fork(self, parent: Sequence) -> Sequence:
        """A second continuation of a sequence; shares its cache blocks if they are kept between steps."""
        child = parent.fork()
        if self.settings.use_past:
            child.block_table = self.blocks.share(parent.block_table)
            child.num_computed_tokens = parent.num_computed_tokens
        return child

    def release(self, sequences: Iterable[Sequence]) -> None:
        """Frees the blocks of sequences that have ended or were dropped."""
        for sequence in sequences:
            self.blocks.free(sequence.block_table)

    def forget_finished(self) -> list[SequenceGroup]:
        """Takes finished requests out of the running ones and returns them; those that failed may still have
        sequences, which are released."""
        finished = [group for group in self.running if group.is_finished]
        if finished:
            for group in finished:
                self._stop(group)
            self.running = [group for group in self.running if not group.is_finished]
        return finished

    def abort(self, keys: Set[str] | None = None) -> list[Sequence]:
        """Drops the requests with these keys, or all, and frees their blocks; returns their sequences."""
        dropped = [
            group for group in (*self.running, *self.waiting) if keys is None or group.request.key in keys
        ]
        for group in dropped:
            if group in self.running:
                self._stop(group)
            elif self.adapters is not None and group.adapter is not None:
                self.adapters.withdraw(group.adapter.name)
        self.running = [group for group in self.running if group not in dropped]
        self.waiting = deque(group for group in self.waiting if group not in dropped)
        return [sequence for group in dropped for sequence in group.sequences]

    def _most_with_prompts(self, step: Step) -> int:
        """Tokens that the step may have, when it has those of the sequences that are generating."""
        most, prompts = self.settings.max_batched_tokens, self.settings.max_prompt_tokens
        return most if prompts is None else min(most, step.num_tokens + prompts)

    def _still_runs(self, group: SequenceGroup, preemptions: int) -> bool:
        """Whether no earlier one of a step, which began after so many pre-emptions, has pre-empted it."""
        return self.num_preemptions == preemptions or group in self.running

    def _schedule_running(self, group: SequenceGroup, step: Step, most: int) -> None:
        wanted = self._wanted(group, most - step.num_tokens)
        while not self._fits(wanted):
            victim = self._last_unscheduled(step)
            self._preempt(victim)
            if victim is group:
                return
        self._take(wanted, step)

    def _admit(self, step: Step, most: int) -> None:
        if not self.waiting:
            return
        num_sequences = sum(group.max_num_sequences for group in self.running)
        while self.waiting and step.num_tokens < most:
            group = self._next_waiting()
            if group is None:
                return
            if num_sequences + group.max_num_sequences > self.settings.batch_size and self.running:
                return
            if group.sequences[0].num_indivisible_tokens > most - step.num_tokens:
                return
            prefixes = self.prefixes.find(group)
            if self._blocks_to_catch_up(group, prefixes) > self.blocks.num_free:
                return
            room = most - step.num_tokens
            if self._is_found(group, prefixes):  # pre-empted, it goes on as those that are decoding
                room = self.settings.max_batched_tokens - step.num_tokens
                if sum(1 + sequence.num_draft_tokens for sequence in group.sequences) > room:
                    return
            # What this step computes can be shared from the next one on. Nobody waits longer than that: a
            # prompt that goes on in the next step has taken all that was left of this one.
            if self.prefixes.is_coming(group, prefixes, step.filled):
                return
            self.waiting.remove(group)
            self._begin(group, prefixes)
            self._load_adapter(group, step)
            num_sequences += group.max_num_sequences
            self._take(self._wanted(group, room), step)

    def _is_found(self, group: SequenceGroup, prefixes: list[list[int]]) -> bool:
        """Whether these blocks hold all of a request that has to be there before its next tokens."""
        size = self.settings.block_size
        pairs = zip(group.sequences, prefixes, strict=True)
        return all(len(sequence) - 1 == len(prefix) * size for sequence, prefix in pairs)

    def _next_waiting(self) -> SequenceGroup | None:
        """The first request that waits, of those whose adapters have a slot or get one."""
        slots = self.adapters
        if slots is None:
            return self.waiting[0]
        for group in islice(self.waiting, LOOK_AHEAD):
            if group.adapter is None or slots.offers(group.adapter.name):
                return group
        overdue = slots.overdue
        if overdue is None:
            return None
        due = (each for each in self.waiting if each.adapter is not None and each.adapter.name == overdue)
        return next((group for group in due if slots.offers(overdue)), None)

    def _load_adapter(self, group: SequenceGroup, step: Step) -> None:
        """Gives a request that begins the slot of its adapter."""
        if self.adapters is None or group.adapter is None:
            return
        group.adapter_slot, must_load = self.adapters.take(group.adapter.name)
        if must_load:
            step.adapter_loads.append((group.adapter_slot, group.adapter.name))

    def _stop(self, group: SequenceGroup) -> None:
        """Frees what a running request holds; it is taken from the running ones elsewhere."""
        self.release(group.sequences)
        if self.adapters is not None and group.adapter is not None:
            self.adapters.release(group.adapter.name)

    def _begin(self, group: SequenceGroup, prefixes: list[list[int]]) -> None:
        """Makes a request a running one; its sequences share the blocks of their prefixes."""
        for sequence, prefix in zip(group.sequences, prefixes, strict=True):
            sequence.block_table = self.blocks.share(prefix)
            sequence.num_computed_tokens = len(prefix) * self.settings.block_size
        if group.num_cached_tokens is None:
            group.num_cached_tokens = group.sequences[0].num_computed_tokens
            self.num_prompt_tokens += len(group.request.prompt_token_ids)
            self.num_cached_tokens += group.num_cached_tokens
        self.running.append(group)

    def _wanted(self, group: SequenceGroup, budget: int) -> list[ScheduledTokens]:
        """A group's tokens for this step, within a budget; its sequences go on together or not at all.

        A sequence goes on from its last token, and its draft is verified in the same step.
        """
        sequences = group.sequences
        is_alone = len(sequences) == 1
        together = is_alone or group.is_decoding
        if not is_alone and together and sum(1 + each.num_draft_tokens for each in sequences) > budget:
            return []  # one alone is left out below
        wanted = []
        for sequence in sequences:
            earlier = sequence.num_earlier_tokens
            last = 1 + sequence.num_draft_tokens if together else 0
            if earlier + last > budget:
                last = 0
            count = min(earlier, budget) + last
            if count == 0 or count < sequence.num_indivisible_tokens:
                continue
            budget -= count
            start = sequence.num_computed_tokens
            wanted.append(ScheduledTokens(group, sequence, start, start + count, last, group.adapter_slot))
        return wanted

    def _take(self, wanted: list[ScheduledTokens], step: Step) -> None:
        for tokens in wanted:
            sequence, start, stop = tokens.sequence, tokens.start, tokens.stop
            step.copies += self.blocks.prepare_write(sequence.block_table, start, stop)
            settled = min(stop, len(sequence))  # what is drafted may yet be refused
            step.filled.update(self.prefixes.filled(tokens.group, sequence, start, settled))
            step.num_tokens += stop - start
            step.scheduled.append(tokens)

    def _fits(self, wanted: list[ScheduledTokens]) -> bool:
        """Whether there are blocks for what is to be written."""
        size, most = self.settings.block_size, 0
        for tokens in wanted:  # they are in so many blocks at most: mostly no more has to be known
            most += (tokens.stop - tokens.start) // size + 2
        return most <= self.blocks.num_free or self.blocks.num_free >= self.blocks.blocks_needed(
            (tokens.sequence.block_table, tokens.start, tokens.stop) for tokens in wanted
        )

    def _blocks_to_catch_up(self, group: SequenceGroup, prefixes: list[list[int]]) -> int:
        """Free blocks until the group's next tokens are chosen, so that it is not admitted to be pre-empted.

        Those of its prefixes that nobody holds are among them.
        """
        revived = {block for prefix in prefixes for block in prefix if self.blocks.holders(block) == 0}
        return len(revived) + self.blocks.blocks_needed(
            (prefix, len(prefix) * self.settings.block_size, len(sequence) + sequence.num_draft_tokens)
            for sequence, prefix in zip(group.sequences, prefixes, strict=True)
        )

    def _last_unscheduled(self, step: Step) -> SequenceGroup:
        """The latest request without tokens in this step; the one being scheduled is such a one."""
        taken = {id(tokens.group) for tokens in step.scheduled}
        return next(group for group in reversed(self.running) if id(group) not in taken)

    def _preempt(self, group: SequenceGroup) -> None:
        self._stop(group)
        for sequence in group.sequences:
            sequence.num_computed_tokens = 0
        self.running.remove(group)
        self.waiting.appendleft(group)
        self.num_preemptions += 1

    def _refuse_impossible(self, group: SequenceGroup) -> None:
        settings, sequences = self.settings, group.max_num_sequences
        needed = sequences * settings.blocks_for(group.max_tokens)
        if needed > settings.num_blocks:
            raise CacheBudgetError(
                f"{group.request.key}: {sequences} x {group.max_tokens} tokens need {needed} cache blocks of "
                f"{settings.block_size} tokens and the cache holds {settings.num_blocks}; raise "
                "runtime.cache_memory or ask for fewer tokens or samples"
            )
        mutual = group.sequences[0].num_mutual_tokens
        if mutual > settings.max_batched_tokens:
            what = "input" if group.sequences[0].num_encoder_tokens else "prompt"
            raise CacheBudgetError(
                f"{group.request.key}: the {what} has {mutual} tokens that see each other, so they are "
                f"computed in one step, of at most runtime.max_batched_tokens={settings.max_batched_tokens}; "
                f"set runtime.max_batched_tokens={mutual} or more, or shorten the {what}"
            )
        at_once = sequences * (1 + group.request.params.num_draft_tokens)
        if at_once > settings.max_batched_tokens:
            raise CacheBudgetError(
                f"{group.request.key}: {sequences} sequences that go on together have {at_once} tokens in a "
                f"step, more than runtime.max_batched_tokens={settings.max_batched_tokens}; raise that, "
                "or ask for fewer samples, beams or drafted tokens"
            )
