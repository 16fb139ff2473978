"""Which replica gets which request: a little more than a batch each, alone what may have ended a replica."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence, Set

from mindbatch.replicas.replica import Asked, Replica

MOST_DEATHS = 2
"""A request that was in so many dying replicas, alone in the last of them, fails."""

_MOST_GROUPS = 16


class Dealing:
    """The requests that no replica has, and the rules by which replicas get them.

    Requests of a replica that died run again with nothing else beside them, each alone or, of many, in a few
    groups: if the replica dies again it is known better who is to blame, and only who was alone is blamed.

    batch_size: of one replica.
    """

    def __init__(self, replicas: Sequence[Replica], batch_size: int) -> None:
        self._replicas = replicas
        self._most_sequences = batch_size + max(2, batch_size // 4)
        self._waiting: deque[Asked] = deque()
        self._suspected: deque[list[Asked]] = deque()

    @property
    def num_waiting(self) -> int:
        """Requests that no replica has."""
        return len(self._waiting) + sum(map(len, self._suspected))

    def add(self, asked: Asked) -> None:
        """Queues a request."""
        self._waiting.append(asked)

    def drop(self, keys: Set[str] | None) -> None:
        """Forgets the requests with these keys, or all."""

        def is_kept(asked: Asked) -> bool:
            return keys is not None and asked.request.key not in keys

        self._waiting = deque(filter(is_kept, self._waiting))
        groups = (list(filter(is_kept, group)) for group in self._suspected)
        self._suspected = deque(group for group in groups if group)

    def deal(self) -> list[tuple[Replica, Asked]]:
        """Gives requests, in the order in which they came, to replicas as long as these have room."""
        dealt: list[tuple[Replica, Asked]] = []
        ready = [replica for replica in self._replicas if replica.is_ready]
        for replica in ready:
            if self._suspected and not replica.dealt:
                dealt += ((replica, asked) for asked in self._suspected.popleft())
                _keep(dealt)
        open_ = [replica for replica in ready if not replica.has_suspects]
        while self._waiting and (least := self._least_loaded(open_)) is not None:
            dealt.append((least, self._waiting.popleft()))
            _keep(dealt[-1:])
        return dealt

    def take_back(self, replica: Replica, *, may_be_a_row: bool) -> list[Asked]:
        """Queues what a replica had that died; returns the requests that are to blame, which are not queued.

        may_be_a_row: whether what it computed may have ended it.
        """
        lost = list(replica.dealt.values())
        replica.dealt.clear()
        for asked in lost:
            asked.deaths += may_be_a_row
            asked.shown.begin_again()
        if len(lost) == 1 and lost[0].deaths >= MOST_DEATHS:
            return lost
        if any(asked.deaths for asked in lost):
            size = math.ceil(len(lost) / _MOST_GROUPS) if may_be_a_row else len(lost)
            groups = [lost[start : start + size] for start in range(0, len(lost), size)]
            self._suspected.extendleft(reversed(groups))
        else:
            self._waiting.extendleft(reversed(lost))
        return []

    def _least_loaded(self, replicas: Sequence[Replica]) -> Replica | None:
        """The replica with the fewest sequences, the first of equals; None if none has room.

        So each has a little more than its batch, the rest waits here until somebody has room, and all end at
        about the same time, whatever the rows' lengths.
        """
        free = [each for each in replicas if each.num_sequences < self._most_sequences]
        return min(free, key=lambda replica: replica.num_sequences, default=None)


def _keep(dealt: Sequence[tuple[Replica, Asked]]) -> None:
    for replica, asked in dealt:
        replica.dealt[asked.request.key] = asked
