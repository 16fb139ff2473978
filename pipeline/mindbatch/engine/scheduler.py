"""Chooses the tokens of the next step and the requests that begin: policy only, no tensors."""

from collections import deque
from collections.abc import Iterable, Set
from itertools import islice

from mindbatch.engine.adapter_slots import AdapterSlots
from mindbatch.engine.block_manager import BlockManager, StateSlots
from mindbatch.engine.prefix_cache import Prefix, PrefixCache
from mindbatch.engine.sequence import Sequence, SequenceGroup
from mindbatch.engine.settings import EngineSettings
from mindbatch.engine.step import ScheduledTokens, Step
from mindbatch.io.errors import CacheBudgetError

LOOK_AHEAD = 256
"""Number of waiting requests that are searched for one with a slot for its adapter."""


class Scheduler:
    """Continuous batching, first come first served.

    Every step takes one token of each sequence that is generating, then fills up with chunks of prompts.
    When blocks run out, the request that came last is pre-empted: its blocks are freed and it is computed
    again later. A request is admitted only if it fits the cache alone, so the first one always progresses.
    A prefix of a request that is in the cache already is shared, not computed.
    Requests may overtake one whose adapter has no slot in `AdapterSlots`.

    num_prompt_tokens, num_cached_tokens: prompt tokens of all requests admitted so far, and how many of them
        were found in the cache.
    """

    def __init__(
        self, settings: EngineSettings, adapters: AdapterSlots | None = None, cache_part: int = 0
    ) -> None:
        """`adapters`: slots that all schedulers of a model share; None where requests have no adapters.

        cache_part: number of this scheduler's part of the cache, which schedulers divide into equal parts.
        """
        self.settings = settings
        self.adapters = adapters or AdapterSlots(0)
        first_block, first_state = cache_part * settings.num_blocks, cache_part * settings.num_states
        self.blocks = BlockManager(settings.num_blocks, settings.block_size, first_block)
        self.states = StateSlots(settings.num_states, first_state)
        self.prefixes = PrefixCache(self.blocks, settings, self.states if settings.is_recurrent else None)
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
        """Maximum number of sequences of all requests, waiting or running."""
        return sum(group.max_num_sequences for group in (*self.waiting, *self.running))

    def add(self, group: SequenceGroup) -> None:
        """Queues a request.

        Raises:
            CacheBudgetError: the request could not run even with the whole cache or step to itself.
        """
        refuse_impossible(group, self.settings)
        self.waiting.append(group)

    def schedule(self) -> Step:
        """Chooses the next step's tokens and allocates their blocks.

        The step is empty only where nothing runs and other schedulers hold all slots for adapters.
        """
        step = Step()
        limit, preemptions = self.settings.max_batched_tokens, self.num_preemptions
        # Lists of their own: pre-emption takes groups out of `running` meanwhile.
        decoding, others = list[SequenceGroup](), list[SequenceGroup]()
        for group in self.running:
            (decoding if group.is_decoding else others).append(group)
        # Those that generate come first, for one token each; prompts fill up what is left of the step.
        for group in decoding:
            if self._still_runs(group, preemptions):
                self._schedule_running(group, step, limit - step.num_tokens)
        if self.settings.max_prompt_tokens is not None:
            limit = min(limit, step.num_tokens + self.settings.max_prompt_tokens)
        for group in others:
            if self._still_runs(group, preemptions):
                self._schedule_running(group, step, limit - step.num_tokens)
        # After a pre-emption nobody begins: the blocks that it freed are for the requests that run.
        if self.num_preemptions == preemptions:
            self._admit(step, limit)
        waits_for_slot = not self.waiting or self.waiting[0].adapter is not None
        assert step.scheduled or (not self.running and waits_for_slot)
        return step

    def complete(self, step: Step) -> None:
        """Records that the step's tokens are in the cache, and registers its full blocks."""
        for tokens in step.scheduled:
            # What was drafted is computed, but counts only once it has been accepted.
            tokens.sequence.num_computed_tokens = min(tokens.stop, len(tokens.sequence))
            tokens.sequence.num_replayed_tokens = 0
        for digest, block in step.filled.items():
            self.blocks.register(block, digest)
        for digest, slot in step.states.items():
            self.states.register(slot, digest)

    def invalidate_adapter_slots(self, step: Step) -> None:
        """Marks the adapters that a failed step was to load as not loaded."""
        for _, name in step.adapter_loads:
            self.adapters.invalidate(name)

    def fork(self, parent: Sequence) -> Sequence:
        """Returns a fork of a sequence, which shares its cache blocks if they are kept between steps."""
        child = parent.fork()
        if self.settings.use_past:
            child.block_table = self.blocks.share(parent.block_table)
            child.state_table = self.states.share(parent.state_table)
            child.num_computed_tokens = parent.num_computed_tokens
        return child

    def release(self, sequences: Iterable[Sequence]) -> None:
        for sequence in sequences:
            self.blocks.free(sequence.block_table)
            self.states.free(sequence.state_table)

    def forget_finished(self) -> list[SequenceGroup]:
        """Removes finished requests from the running ones and returns them.

        The sequences of those that failed are released.
        """
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
            else:
                self.adapters.withdraw(group.adapter_name)
        self.running = [group for group in self.running if group not in dropped]
        self.waiting = deque(group for group in self.waiting if group not in dropped)
        return [sequence for group in dropped for sequence in group.sequences]

    def _still_runs(self, group: SequenceGroup, preemptions: int) -> bool:
        """True if this step, which began after `preemptions` pre-emptions, has not pre-empted the group."""
        return self.num_preemptions == preemptions or group in self.running

    def _schedule_running(self, group: SequenceGroup, step: Step, budget: int) -> None:
        wanted = next_tokens(group, budget)
        while not self._fits(wanted):
            victim = self._last_unscheduled(step)
            self._preempt(victim)
            # The group itself came last, and is now the first to wait.
            if victim is group:
                return
        self._take(wanted, step)

    def _admit(self, step: Step, limit: int) -> None:
        """Begins requests, first come first served, while the step has fewer than `limit` tokens."""
        num_sequences = sum(group.max_num_sequences for group in self.running)
        while self.waiting and step.num_tokens < limit:
            group = self._first_waiting()
            if group is None or (
                num_sequences and num_sequences + group.max_num_sequences > self.settings.batch_size
            ):
                return
            budget = limit - step.num_tokens
            if group.sequences[0].num_unsplittable_prefill_tokens > budget:
                return
            if self.settings.is_recurrent and self.states.num_free < len(group.sequences):
                return
            prefixes = self.prefixes.find(group)
            if self._blocks_to_catch_up(group, prefixes) > self.blocks.num_free:
                return
            if self._is_found(group, prefixes):  # pre-empted, it goes on as those that are decoding
                budget = self.settings.max_batched_tokens - step.num_tokens
                if sum(1 + sequence.num_draft_tokens for sequence in group.sequences) > budget:
                    return
            # What this step computes can be shared from the next one on. Nobody waits longer than that: a
            # prompt that goes on in the next step has taken all that was left of this one.
            if self.prefixes.is_coming(group, prefixes, step):
                return
            self._begin(group, prefixes, step)
            num_sequences += group.max_num_sequences
            self._take(next_tokens(group, budget), step)

    def _first_waiting(self) -> SequenceGroup | None:
        """Returns the first waiting request whose adapter has a slot or can get one."""
        for group in islice(self.waiting, LOOK_AHEAD):
            if self.adapters.offers(group.adapter_name):
                return group
        overdue = self.adapters.overdue
        if overdue is None:
            return None
        due = (group for group in self.waiting if group.adapter_name == overdue)
        return next((group for group in due if self.adapters.offers(overdue)), None)

    def _is_found(self, group: SequenceGroup, prefixes: list[Prefix]) -> bool:
        """True if these blocks have all tokens of a request but the last ones."""
        size = self.settings.block_size
        pairs = zip(group.sequences, prefixes, strict=True)
        return all(len(sequence) - 1 == len(prefix.blocks) * size for sequence, prefix in pairs)

    def _blocks_to_catch_up(self, group: SequenceGroup, prefixes: list[Prefix]) -> int:
        """Returns the free blocks that the group takes until its next tokens are chosen.

        With fewer it would be pre-empted at once. Blocks of its prefixes that no table holds count too.
        """
        tables = [prefix.blocks for prefix in prefixes]
        revived = {block for blocks in tables for block in blocks if self.blocks.holders(block) == 0}
        return len(revived) + self.blocks.blocks_needed(
            (blocks, len(blocks) * self.settings.block_size, len(sequence) + sequence.num_draft_tokens)
            for sequence, blocks in zip(group.sequences, tables, strict=True)
        )

    def _stop(self, group: SequenceGroup) -> None:
        """Frees blocks and adapter slot of a running request, which the caller removes from `running`."""
        self.release(group.sequences)
        self.adapters.release(group.adapter_name)

    def _begin(self, group: SequenceGroup, prefixes: list[Prefix], step: Step) -> None:
        """Moves a request from `waiting` to `running`; its sequences share the blocks of their prefixes."""
        for sequence, prefix in zip(group.sequences, prefixes, strict=True):
            sequence.block_table = self.blocks.share(prefix.blocks)
            sequence.state_table = self.states.share(prefix.states)
            sequence.num_computed_tokens = len(prefix.blocks) * self.settings.block_size
            sequence.num_known_tokens = prefix.num_known_tokens if self.settings.is_recurrent else 0
        if group.num_cached_tokens is None:
            group.num_cached_tokens = group.sequences[0].num_computed_tokens
            self.num_prompt_tokens += len(group.request.prompt_token_ids)
            self.num_cached_tokens += group.num_cached_tokens
        self.waiting.remove(group)
        self.running.append(group)
        group.adapter_slot, must_load = self.adapters.take(group.adapter_name)
        if must_load and group.adapter_name is not None:
            step.adapter_loads.append((group.adapter_slot, group.adapter_name))

    def _take(self, wanted: list[ScheduledTokens], step: Step) -> None:
        for tokens in wanted:
            sequence, start, stop = tokens.sequence, tokens.start, tokens.stop
            step.copies += self.blocks.prepare_write(sequence.block_table, start, stop)
            verified = min(stop, len(sequence))  # drafted tokens may be rejected
            step.filled.update(self.prefixes.filled(tokens.group, sequence, start, verified))
            if self.settings.is_recurrent:
                step.state_copies += self.states.prepare_write(sequence.state_table, start, stop)
                # While a prompt is computed: what follows it is likelier to be its own than another's.
                digest = self.prefixes.state_behind(tokens.group, sequence, stop)
                if digest is not None and not tokens.num_logits:
                    step.states[digest] = sequence.state_table[0]
            step.num_tokens += stop - start
            step.scheduled.append(tokens)

    def _fits(self, wanted: list[ScheduledTokens]) -> bool:
        """True if there are free blocks and state slots for these tokens."""
        if self.settings.is_recurrent and self.states.num_free < self.states.blocks_needed(
            (tokens.sequence.state_table, tokens.start, tokens.stop) for tokens in wanted
        ):
            return False
        size, bound = self.settings.block_size, 0
        for tokens in wanted:  # an upper bound of their blocks, which is mostly enough to know
            bound += (tokens.stop - tokens.start) // size + 2
        return bound <= self.blocks.num_free or self.blocks.num_free >= self.blocks.blocks_needed(
            (tokens.sequence.block_table, tokens.start, tokens.stop) for tokens in wanted
        )

    def _last_unscheduled(self, step: Step) -> SequenceGroup:
        """Returns the latest running request without tokens in this step; there is always one."""
        taken = {id(tokens.group) for tokens in step.scheduled}
        return next(group for group in reversed(self.running) if id(group) not in taken)

    def _preempt(self, group: SequenceGroup) -> None:
        self._stop(group)
        for sequence in group.sequences:
            sequence.num_computed_tokens = sequence.num_replayed_tokens = 0
        self.running.remove(group)
        # Before those that wait, as it came earlier; the latest is pre-empted first, so the order is kept.
        self.waiting.appendleft(group)
        self.num_preemptions += 1


def refuse_impossible(group: SequenceGroup, settings: EngineSettings) -> None:
    """Raises CacheBudgetError if a request could not run even with the whole cache or step to itself."""
    sequences = group.max_num_sequences
    needed = sequences * settings.blocks_for(group.max_tokens)
    if needed > settings.num_blocks:
        raise CacheBudgetError(
            f"{group.request.key}: {sequences} x {group.max_tokens} tokens need {needed} cache blocks of "
            f"{settings.block_size} tokens and the cache holds {settings.num_blocks}; raise "
            "runtime.cache_memory or ask for fewer tokens or samples"
        )
    if settings.is_recurrent and sequences > settings.num_states:
        raise CacheBudgetError(
            f"{group.request.key}: {sequences} sequences that go on together have a state each and the "
            f"cache holds {settings.num_states}; raise runtime.cache_memory or ask for fewer samples"
        )
    together = group.sequences[0].num_bidirectional_tokens
    if together > settings.max_batched_tokens:
        part = "input" if group.sequences[0].num_encoder_tokens else "prompt"
        raise CacheBudgetError(
            f"{group.request.key}: the {part} has {together} tokens that see each other, so they are "
            f"computed in one step, of at most runtime.max_batched_tokens={settings.max_batched_tokens}; "
            f"set runtime.max_batched_tokens={together} or more, or shorten the {part}"
        )
    drafts = group.request.params.num_draft_tokens
    at_once = sequences * (1 + (2 * drafts if settings.is_recurrent else drafts))  # with those replayed
    if at_once > settings.max_batched_tokens:
        raise CacheBudgetError(
            f"{group.request.key}: {sequences} sequences that go on together have {at_once} tokens in a "
            f"step, more than runtime.max_batched_tokens={settings.max_batched_tokens}; raise that, "
            "or ask for fewer samples, beams or drafted tokens"
        )


def next_tokens(group: SequenceGroup, budget: int) -> list[ScheduledTokens]:
    """Returns a group's tokens for this step, within a budget; its sequences continue together or not at all.

    The same step computes the last token of a sequence and verifies its draft.
    """
    sequences = group.sequences
    is_alone = len(sequences) == 1
    together = is_alone or group.is_decoding
    if not is_alone and together:
        least = sum(sequence.num_replayed_tokens + 1 + sequence.num_draft_tokens for sequence in sequences)
        if least > budget:
            return []  # one alone is left out below
    wanted = []
    for sequence in sequences:
        earlier = sequence.num_earlier_tokens
        last = 1 + sequence.num_draft_tokens if together else 0
        # The last token and its draft go together, or in a later step.
        if earlier + last > budget:
            last = 0
        count = min(earlier, budget) + last
        start = sequence.num_computed_tokens
        if start < sequence.num_known_tokens < start + count:
            count, last = sequence.num_known_tokens - start, 0
        if count == 0 or count < sequence.num_unsplittable_prefill_tokens:
            continue
        budget -= count
        wanted.append(ScheduledTokens(group, sequence, start, start + count, last, group.adapter_slot))
    return wanted
