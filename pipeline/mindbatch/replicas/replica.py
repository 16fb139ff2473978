"""What the front knows of one replica: its ranks, how far they are, and the requests that it has."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from mindbatch.decoding.registry import strategy_for
from mindbatch.engine.request import Request
from mindbatch.engine.statistics import EngineStatistics, total_of
from mindbatch.replicas.repeated_events import ShownEvents


@dataclass(slots=True)
class Asked:
    """A request that is not finished.

    sequences: that it runs at most. started: when it was added (`time.perf_counter`).
    deaths: of replicas that may have ended because of it. shown: what callers have got of it.
    """

    request: Request
    sequences: int
    started: float = field(default_factory=time.perf_counter)
    deaths: int = 0
    shown: ShownEvents = field(default_factory=ShownEvents)

    @classmethod
    def of(cls, request: Request) -> Asked:
        """A request that has just come."""
        return cls(request, strategy_for(request.params).width(request.params))


@dataclass
class Replica:
    """One replica.

    ranks: its global ranks. leader: the one that runs its engine.
    attempt: how often it was started before.
    waiting_for: the ranks that are not ready.
    notice: what takes the leader's time, in words; empty if nothing does.
    dealt: the unfinished requests that it has, by key.
    statistics: of its engine, as it said last. past: of the engines that it had before, their load left out.
    """

    index: int
    ranks: range
    leader: int
    attempt: int = 0
    waiting_for: set[int] = field(default_factory=set)
    notice: str = ""
    dealt: dict[str, Asked] = field(default_factory=dict)
    statistics: EngineStatistics | None = None
    past: EngineStatistics | None = None

    def __post_init__(self) -> None:
        self.waiting_for = set(self.ranks)

    @property
    def is_ready(self) -> bool:
        """Whether all of its ranks have loaded their part of the model."""
        return not self.waiting_for

    @property
    def num_sequences(self) -> int:
        """Sequences of the requests that it has."""
        return sum(asked.sequences for asked in self.dealt.values())

    @property
    def has_suspects(self) -> bool:
        """Whether it runs requests that may have ended a replica."""
        return any(asked.deaths for asked in self.dealt.values())

    def begin_again(self) -> None:
        """Its ranks are started anew; it has no requests."""
        self.attempt += 1
        self.waiting_for = set(self.ranks)
        self.notice = ""
        if self.statistics is not None:
            found = self.statistics if self.past is None else total_of([self.past, self.statistics])
            self.past = replace(found, running_sequences=0, waiting_requests=0, blocks_used=0, blocks_total=0)
        self.statistics = None
