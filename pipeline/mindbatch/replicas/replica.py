"""State of one replica as the front knows it: its ranks, how far they are, and its requests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from mindbatch.engine.statistics import EngineStatistics
from mindbatch.replicas.asked import InFlightRequest


@dataclass
class Replica:
    """One replica.

    ranks: its global ranks. leader: the one that runs its engine.
    attempt: how often it was started before.
    waiting_for: the ranks that are not ready.
    notice: what takes the leader's time, in words; empty if nothing does.
    dealt: the unfinished requests that it has, by key.
    statistics: of its engine, as it said last. earlier: those of the attempts before.
    """

    index: int
    ranks: range
    leader: int
    attempt: int = 0
    waiting_for: set[int] = field(default_factory=set)
    notice: str = ""
    dealt: dict[str, InFlightRequest] = field(default_factory=dict)
    statistics: EngineStatistics | None = None
    earlier: list[EngineStatistics] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.waiting_for = set(self.ranks)

    @property
    def is_ready(self) -> bool:
        """True if all of its ranks have loaded their part of the model."""
        return not self.waiting_for

    @property
    def num_sequences(self) -> int:
        """Sequences of the requests that it has."""
        return sum(asked.sequences for asked in self.dealt.values())

    @property
    def has_suspects(self) -> bool:
        """True if its requests may have ended a process: then it gets no others."""
        return any(asked.is_suspect for asked in self.dealt.values())

    def begin_again(self) -> list[InFlightRequest]:
        """Another attempt; returns the requests that it had."""
        left = list(self.dealt.values())
        if self.statistics is not None:
            self.earlier.append(self.statistics.at_rest())
        self.attempt += 1
        self.waiting_for, self.notice, self.statistics = set(self.ranks), "", None
        self.dealt.clear()
        return left


def least_loaded(replicas: Iterable[Replica], most_sequences: int) -> Replica | None:
    """The ready replica with the fewest sequences, the first of equals; None if all have `most_sequences`.

    So each has a little more than its batch, the rest waits here until somebody has room, and all end at
    about the same time, whatever the rows' lengths.
    """
    free = [
        replica
        for replica in replicas
        if replica.is_ready and replica.num_sequences < most_sequences and not replica.has_suspects
    ]
    return min(free, key=lambda replica: replica.num_sequences, default=None)
