"""What the front knows of one replica: its ranks, how far they are, and the requests that it has."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from mindbatch.decoding.registry import strategy_for
from mindbatch.engine.request import Request
from mindbatch.engine.statistics import EngineStatistics


@dataclass(slots=True)
class Asked:
    """A request that is not finished.

    sequences: that it runs at most. started: when it was added (`time.perf_counter`).
    """

    request: Request
    sequences: int
    started: float = field(default_factory=time.perf_counter)

    @classmethod
    def of(cls, request: Request) -> Asked:
        """A request that has just come."""
        return cls(request, strategy_for(request.params).width(request.params))


@dataclass
class Replica:
    """One replica.

    ranks: its global ranks. leader: the one that runs its engine.
    waiting_for: the ranks that are not ready.
    notice: what takes the leader's time, in words; empty if nothing does.
    dealt: the unfinished requests that it has, by key.
    statistics: of its engine, as it said last.
    """

    index: int
    ranks: range
    leader: int
    attempt: int = 0
    waiting_for: set[int] = field(default_factory=set)
    notice: str = ""
    dealt: dict[str, Asked] = field(default_factory=dict)
    statistics: EngineStatistics | None = None

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


def least_loaded(replicas: Iterable[Replica], most_sequences: int) -> Replica | None:
    """The ready replica with the fewest sequences, the first of equals; None if all have `most_sequences`.

    So each has a little more than its batch, the rest waits here until somebody has room, and all end at
    about the same time, whatever the rows' lengths.
    """
    free = [each for each in replicas if each.is_ready and each.num_sequences < most_sequences]
    return min(free, key=lambda replica: replica.num_sequences, default=None)
