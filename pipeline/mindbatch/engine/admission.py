"""Admission: which waiting request may begin, and in how much of a step."""

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from mindbatch.engine.adapter_slots import AdapterSlots
from mindbatch.engine.block_manager import BlockManager
from mindbatch.engine.prefix_cache import Prefix, PrefixCache
from mindbatch.engine.sequence import SequenceGroup
from mindbatch.engine.settings import EngineSettings
from mindbatch.engine.step import Step, TokenBudget
from mindbatch.io.errors import CacheBudgetError

LOOK_AHEAD = 256
"""Waiting requests among which one is sought that has a slot for its adapter."""


class Admitted(NamedTuple):
    """A request that may begin. prefixes: what the cache has of each sequence. room: tokens for it."""

    group: SequenceGroup
    prefixes: list[Prefix]
    room: int


class Admission:
    """First come, first served; a request for whose adapter there is no slot is passed by others.

    A request begins where there is a seat for each of its sequences, and blocks until its next tokens are
    chosen, so that it is not admitted to be pre-empted.
    """

    def __init__(
        self,
        settings: EngineSettings,
        blocks: BlockManager,
        states: BlockManager,
        prefixes: PrefixCache,
        slots: AdapterSlots,
    ) -> None:
        """`states`: slots of recurrent states."""
        self._settings, self._blocks, self._states = settings, blocks, states
        self._prefixes, self._slots = prefixes, slots

    def next(
        self, waiting: Iterable[SequenceGroup], step: Step, budget: TokenBudget, num_sequences: int
    ) -> Admitted | None:
        """The next request, if it may begin in the step. num_sequences: that run, at most."""
        group = self._first(waiting)
        if group is None or (
            num_sequences and num_sequences + group.max_num_sequences > self._settings.batch_size
        ):
            return None
        room = budget.left_for_prompts
        if group.sequences[0].num_unsplittable_prefill_tokens > room:
            return None
        if self._settings.is_recurrent and self._states.num_free < len(group.sequences):
            return None
        prefixes = self._prefixes.find(group)
        if self._blocks_to_catch_up(group, prefixes) > self._blocks.num_free:
            return None
        if self._is_found(group, prefixes):  # pre-empted, it goes on as those that are decoding
            room = budget.left
            if sum(1 + sequence.num_draft_tokens for sequence in group.sequences) > room:
                return None
        # What this step computes can be shared from the next one on. Nobody waits longer than that: a
        # prompt that goes on in the next step has taken all that was left of this one.
        if self._prefixes.is_coming(group, prefixes, step):
            return None
        return Admitted(group, prefixes, room)

    def _first(self, waiting: Iterable[SequenceGroup]) -> SequenceGroup | None:
        """The first request that waits, of those whose adapters have a slot or get one."""
        for group in islice(waiting, LOOK_AHEAD):
            if self._slots.offers(group.adapter_name):
                return group
        overdue = self._slots.overdue
        if overdue is None:
            return None
        due = (group for group in waiting if group.adapter_name == overdue)
        return next((group for group in due if self._slots.offers(overdue)), None)

    def _is_found(self, group: SequenceGroup, prefixes: list[Prefix]) -> bool:
        """True where these blocks hold all of a request that has to be there before its next tokens."""
        size = self._settings.block_size
        pairs = zip(group.sequences, prefixes, strict=True)
        return all(len(sequence) - 1 == len(prefix.blocks) * size for sequence, prefix in pairs)

    def _blocks_to_catch_up(self, group: SequenceGroup, prefixes: list[Prefix]) -> int:
        """Free blocks until the group's next tokens are chosen, so that it is not admitted to be pre-empted.

        Those of its prefixes that nobody holds are among them.
        """
        tables = [prefix.blocks for prefix in prefixes]
        revived = {block for blocks in tables for block in blocks if self._blocks.holders(block) == 0}
        return len(revived) + self._blocks.blocks_needed(
            (blocks, len(blocks) * self._settings.block_size, len(sequence) + sequence.num_draft_tokens)
            for sequence, blocks in zip(group.sequences, tables, strict=True)
        )

    def refuse_impossible(self, group: SequenceGroup) -> None:
        """CacheBudgetError for a request that could not run even with the whole cache or step to itself."""
        settings, sequences = self._settings, group.max_num_sequences
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
            what = "input" if group.sequences[0].num_encoder_tokens else "prompt"
            raise CacheBudgetError(
                f"{group.request.key}: the {what} has {together} tokens that see each other, so they are "
                f"computed in one step, of at most runtime.max_batched_tokens={settings.max_batched_tokens}; "
                f"set runtime.max_batched_tokens={together} or more, or shorten the {what}"
            )
        drafts = group.request.params.num_draft_tokens
        at_once = sequences * (1 + (2 * drafts if settings.is_recurrent else drafts))  # with those replayed
        if at_once > settings.max_batched_tokens:
            raise CacheBudgetError(
                f"{group.request.key}: {sequences} sequences that go on together have {at_once} tokens in a "
                f"step, more than runtime.max_batched_tokens={settings.max_batched_tokens}; raise that, "
                "or ask for fewer samples, beams or drafted tokens"
            )
