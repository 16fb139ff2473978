"""Deals requests to replicas: one queue for all, dealt as replicas have capacity, and dealt again."""

import math
from collections import deque
from collections.abc import Callable, Sequence, Set

from mindbatch.engine.engine import StepResult
from mindbatch.engine.request import Request, RequestOutput
from mindbatch.replicas.replica import InFlightRequest, Replica, least_loaded

MOST_ENDED_WORKERS = 2
"""A request with which so many processes have ended, the last one with it alone, is not tried again."""

_MOST_GROUPS = 16


class Dealing:
    """The unfinished requests of a job.

    Suspects, with which a process has ended, run again with nothing else beside them: each alone or,
    where they are many, in a few groups. If the process ends again it is known better whose fault that is,
    and only who was alone is to blame.

    at_once: sequences that a replica computes at a time.
    spare: how many more it is given, so that it need not wait for the next one; not towards the end, where
        the others had better have them.
    """

    def __init__(self, replicas: Sequence[Replica], at_once: int, spare: int = 0) -> None:
        self._replicas = replicas
        self._at_once, self._spare = at_once, spare
        self._waiting: deque[InFlightRequest] = deque()
        self._suspects: deque[list[InFlightRequest]] = deque()

    @property
    def has_work(self) -> bool:
        """True if any request is unfinished."""
        return bool(self.num_waiting) or any(replica.dealt for replica in self._replicas)

    @property
    def num_waiting(self) -> int:
        """Requests that no replica has."""
        return len(self._waiting) + sum(map(len, self._suspects))

    def add(self, request: Request) -> None:
        self._waiting.append(InFlightRequest.of(request))

    def deal(self, hand_out: Callable[[Replica, Request], None]) -> None:
        """Gives requests to replicas that have room, suspects first, the others in the order they came in."""
        for replica in self._replicas:
            if self._suspects and replica.is_ready and not replica.dealt:
                for asked in self._suspects.popleft():
                    self._give(replica, asked, hand_out)
        while self._waiting and (least := least_loaded(self._replicas, self._most_sequences())) is not None:
            self._give(least, self._waiting.popleft(), hand_out)

    def _most_sequences(self) -> int:
        """Most sequences that a replica has when it has been given a request."""
        is_near_the_end = len(self._waiting) <= self._at_once * len(self._replicas)
        return self._at_once if is_near_the_end else self._at_once + self._spare

    def _give(
        self, replica: Replica, asked: InFlightRequest, hand_out: Callable[[Replica, Request], None]
    ) -> None:
        replica.dealt[asked.request.key] = asked
        hand_out(replica, asked.request)

    def drop(self, keys: Set[str] | None) -> list[tuple[Replica, list[str]]]:
        """Forgets requests, or all; returns the replicas that had some, with their keys."""

        def is_kept(asked: InFlightRequest) -> bool:
            return keys is not None and asked.request.key not in keys

        self._waiting = deque(filter(is_kept, self._waiting))
        groups = (list(filter(is_kept, group)) for group in self._suspects)
        self._suspects = deque(group for group in groups if group)
        dropped = []
        for replica in self._replicas:
            gone = [key for key in replica.dealt if keys is None or key in keys]
            for key in gone:
                del replica.dealt[key]
            if gone:
                dropped.append((replica, gone))
        return dropped

    def take(self, replica: Replica, result: StepResult) -> StepResult:
        """Returns what a replica's step brings to callers; nothing of requests that were dropped."""
        seen = (
            replica.dealt[event.key].unseen(event) for event in result.events if event.key in replica.dealt
        )
        events = [event for event in seen if event is not None]
        finished = [
            replica.dealt.pop(output.key).completed(output)
            for output in result.finished
            if output.key in replica.dealt
        ]
        return StepResult(events, finished)

    def take_back(self, replica: Replica, how_it_ended: str, *, may_be_a_row: bool) -> list[RequestOutput]:
        """Queues the requests again that an ended replica had; returns the results of those to blame.

        may_be_a_row: whether what the replica computed may have ended it.
        """
        lost = replica.begin_again()
        for asked in lost:
            if may_be_a_row:
                asked.ended_workers.append(how_it_ended)
            asked.begin_again()
        if len(lost) == 1 and len(lost[0].ended_workers) >= MOST_ENDED_WORKERS:
            return [lost[0].blamed()]
        suspects = [asked for asked in lost if asked.is_suspect]
        self._waiting.extendleft(asked for asked in reversed(lost) if not asked.is_suspect)
        if suspects:
            size = math.ceil(len(suspects) / _MOST_GROUPS) if may_be_a_row else len(suspects)
            starts = range(0, len(suspects), size)
            self._suspects.extendleft(suspects[start : start + size] for start in reversed(starts))
        return []
