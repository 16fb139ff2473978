"""Counts of the engine's work so far, and how full it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

from mindbatch.engine.request import CompletionOutput
from mindbatch.engine.scheduler import Scheduler


@dataclass(frozen=True)
class EngineStatistics:
    """Totals since the engine was made, and its load now.

    steps: how often the model was run.
    prompt_tokens: of the requests admitted; a request that was pre-empted counts once.
    cached_prompt_tokens: those of them that were found in the cache.
    computed_tokens: tokens that passed through the model, those computed again after a pre-emption included.
    generated_tokens: tokens of all outputs; those of hypotheses that a search drops do not count.
    drafted_tokens, accepted_tokens: of speculative decoding, for the outputs that have ended.
    running_sequences, waiting_requests: in the engine now.
    blocks_used, blocks_total: cache blocks that running sequences hold, and all of them.
    cache_waste: share of the slots in used blocks that held no token, over all steps; a shared block counts
        once.
    """

    steps: int
    prompt_tokens: int
    cached_prompt_tokens: int
    computed_tokens: int
    generated_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    num_preemptions: int
    running_sequences: int
    waiting_requests: int
    blocks_used: int
    blocks_total: int
    cache_waste: float

    @property
    def prefix_hit_rate(self) -> float:
        """Share of the prompt tokens that were found in the cache; 0 before the first request."""
        return self.cached_prompt_tokens / max(1, self.prompt_tokens)

    @property
    def cache_use(self) -> float:
        return self.blocks_used / self.blocks_total

    def since(self, earlier: EngineStatistics) -> EngineStatistics:
        """Totals without those of an earlier time, and the load now."""
        totals = {*asdict(self)} - {*_LOAD, "cache_waste"}
        return replace(self, **{name: getattr(self, name) - getattr(earlier, name) for name in totals})

    def at_rest(self) -> EngineStatistics:
        """The totals of an engine that has ended: it has no load any more."""
        return replace(self, **dict.fromkeys(_LOAD, 0))


_LOAD = ("running_sequences", "waiting_requests", "blocks_used", "blocks_total")


def total_of(parts: Sequence[EngineStatistics]) -> EngineStatistics:
    """The counts of several engines as those of one; at least one. The waste is weighed by their steps."""
    sums = {name: sum(getattr(part, name) for part in parts) for name in asdict(parts[0])}
    waste = sum(part.cache_waste * part.steps for part in parts) / max(1, sums["steps"])
    return EngineStatistics(**{**sums, "cache_waste": waste})


@dataclass
class Counters:
    """Counts the steps of one engine."""

    steps: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    slots: int = 0
    empty_slots: int = 0

    def count(self, num_tokens: int, scheduler: Scheduler) -> None:
        """Adds a step of so many tokens, just completed, from which no token has been chosen yet."""
        self.steps += 1
        self.computed_tokens += num_tokens
        blocks = scheduler.blocks
        self.slots += (blocks.num_blocks - blocks.num_free) * blocks.block_size
        self.empty_slots += _empty_slots(scheduler)

    def count_outputs(self, outputs: Iterable[CompletionOutput]) -> None:
        for output in outputs:
            self.drafted_tokens += output.num_drafted_tokens
            self.accepted_tokens += output.num_accepted_tokens

    def statistics(self, scheduler: Scheduler) -> EngineStatistics:
        blocks = scheduler.blocks
        return EngineStatistics(
            steps=self.steps,
            prompt_tokens=scheduler.num_prompt_tokens,
            cached_prompt_tokens=scheduler.num_cached_tokens,
            computed_tokens=self.computed_tokens,
            generated_tokens=self.generated_tokens,
            drafted_tokens=self.drafted_tokens,
            accepted_tokens=self.accepted_tokens,
            num_preemptions=scheduler.num_preemptions,
            running_sequences=sum(len(group.sequences) for group in scheduler.running),
            waiting_requests=len(scheduler.waiting),
            blocks_used=blocks.num_blocks - blocks.num_free,
            blocks_total=blocks.num_blocks,
            cache_waste=self.empty_slots / max(1, self.slots),
        )


def _empty_slots(scheduler: Scheduler) -> int:
    """Slots without a token: only the last block of a table has any, and forks may still share it."""
    size = scheduler.blocks.block_size
    empty = {
        sequence.block_table[-1]: len(sequence.block_table) * size - sequence.num_computed_tokens
        for group in scheduler.running
        for sequence in group.sequences
        if sequence.block_table
    }
    return sum(empty.values())
