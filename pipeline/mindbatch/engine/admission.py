"""Admission: which waiting request may begin, and in how much of a step."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from mindbatch.engine.adapter_slots import AdapterSlots
from mindbatch.engine.block_manager import BlockManager
from mindbatch.engine.prefix_cache import PrefixCache
from mindbatch.engine.sequence import SequenceGroup
from mindbatch.engine.settings import EngineSettings
from mindbatch.engine.step import Step, TokenBudget
from mindbatch.io.errors import CacheBudgetError

LOOK_AHEAD = 256
"""Waiting requests among which one is sought that has a slot for its adapter."""


class Admitted(NamedTuple):
    """A request that may begin. prefixes: blocks of each sequence that the cache has. room: tokens for it."""

    group: SequenceGroup
    prefixes: list[list[int]]
    room: int


class Admission:
    """First come, first served; a request for whose adapter there is no slot is passed by others.

    A request begins where there is a seat for each of its sequences, and blocks until its next tokens are
    chosen, so that it is not admitted to be pre-empted.
    """

    def __init__(
        self, settings: EngineSettings, blocks: BlockManager, prefixes: PrefixCache, slots: AdapterSlots
    ) -> None:
        self._settings, self._blocks, self._prefixes, self._slots = settings, blocks, prefixes, slots

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
        prefixes = self._prefixes.find(group)
        if self._blocks_to_catch_up(group, prefixes) > self._blocks.num_free:
            return None
        if self._is_found(group, prefixes):  # pre-empted, it goes on as those that are decoding
            room = budget.left
            if sum(1 + sequence.num_draft_tokens for sequence in group.sequences) > room:
                return None
        # What this step computes can be shared from the next one on. Nobody waits longer than that: a
        # prompt that goes on in the next step has taken all that was left of this one.
        if self._prefixes.is_coming(group, prefixes, step.filled):
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

    def _is_found(self, group: SequenceGroup, prefixes: list[list[int]]) -> bool:
        """True where these blocks hold all of a request that has to be there before its next tokens."""
        size = self._settings.block_size
        pairs = zip(group.sequences, prefixes, strict=True)
        return all(len(sequence) - 1 == len(prefix) * size for sequence, prefix in pairs)

    def _blocks_to_catch_up(self, group: SequenceGroup, prefixes: list[list[int]]) -> int:
        """Free blocks until the group's next tokens are chosen, so that it is not admitted to be pre-empted.

        Those of its prefixes that nobody holds are among them.
        """
        revived = {block for prefix in prefixes for block in prefix if self._blocks.holders(block) == 0}
        return len(revived) + self._blocks.blocks_needed(
            (prefix, len(prefix) * self._settings.block_size, len(sequence) + sequence.num_draft_tokens)
            for sequence, prefix in zip(group.sequences, prefixes, strict=True)
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
        together = group.sequences[0].num_bidirectional_tokens
        if together > settings.max_batched_tokens:
            what = "input" if group.sequences[0].num_encoder_tokens else "prompt"
            raise CacheBudgetError(
                f"{group.request.key}: the {what} has {together} tokens that see each other, so they are "
                f"computed in one step, of at most runtime.max_batched_tokens={settings.max_batched_tokens}; "
                f"set runtime.max_batched_tokens={together} or more, or shorten the {what}"
            )
        at_once = sequences * (1 + group.request.params.num_draft_tokens)
        if at_once > settings.max_batched_tokens:
            raise CacheBudgetError(
                f"{group.request.key}: {sequences} sequences that go on together have {at_once} tokens in a "
                f"step, more than runtime.max_batched_tokens={settings.max_batched_tokens}; raise that, "
                "or ask for fewer samples, beams or drafted tokens"
            )
