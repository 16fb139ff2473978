"""Counts the engine's work so far, and its load."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

from mindbatch.engine.request import CompletionOutput
from mindbatch.engine.scheduler import Scheduler


@dataclass(frozen=True)
class EngineStatistics:
    """Totals since the engine was created, and its present load.

    steps: number of steps that the model has computed.
    prompt_tokens: prompt tokens of the admitted requests; a pre-empted request counts once.
    cached_prompt_tokens: prompt tokens that were found in the cache.
    computed_tokens: tokens that the model has computed, again after a pre-emption included.
    generated_tokens: tokens of all outputs, without those of hypotheses that a search drops.
    drafted_tokens, accepted_tokens: tokens that speculative decoding drafted and accepted, in outputs that
        have ended.
    running_sequences, waiting_requests: their present number.
    blocks_used, blocks_total: number of cache blocks that running sequences hold, and of all blocks.
    cache_waste: share of the slots in used blocks without a token, over all steps; a shared block counts
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
        """Returns the totals since earlier statistics, and the present load."""
        totals = {*asdict(self)} - {*_LOAD, "cache_waste"}
        return replace(self, **{name: getattr(self, name) - getattr(earlier, name) for name in totals})

    def at_rest(self) -> EngineStatistics:
        """Returns the totals with no load, for an engine that has ended."""
        return replace(self, **dict.fromkeys(_LOAD, 0))


_LOAD = ("running_sequences", "waiting_requests", "blocks_used", "blocks_total")


def total_of(parts: Sequence[EngineStatistics]) -> EngineStatistics:
    """Returns the sum of the statistics of at least one engine; cache_waste is weighted by steps."""
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
        """Adds a step that was just computed, before tokens are chosen from its logits."""
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
    """Returns the number of slots without a token; only the last block of a table has any."""
    size = scheduler.blocks.block_size
    empty = {
        sequence.block_table[-1]: len(sequence.block_table) * size - sequence.num_computed_tokens
        for group in scheduler.running
        for sequence in group.sequences
        if sequence.block_table
    }
    return sum(empty.values())
