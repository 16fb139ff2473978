"""Which replica gets which request: a queue for all, dealt as replicas have room, and dealt again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence, Set

from mindbatch.engine.engine import StepResult
from mindbatch.engine.request import Request, RequestOutput
from mindbatch.replicas.asked import Asked
from mindbatch.replicas.replica import Replica, least_loaded

MOST_ENDED_WORKERS = 2
"""A request in whose steps so many processes have ended is not tried again."""


class Dealing:
    """The unfinished requests of a job.

    most_sequences: that a replica is given.
    """

    def __init__(self, replicas: Sequence[Replica], most_sequences: int) -> None:
        self._replicas = replicas
        self._most_sequences = most_sequences
        self._waiting: deque[Asked] = deque()
        self._suspects: deque[Asked] = deque()

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self.num_waiting) or any(replica.dealt for replica in self._replicas)

    @property
    def num_waiting(self) -> int:
        """Requests that no replica has."""
        return len(self._waiting) + len(self._suspects)

    def add(self, request: Request) -> None:
        """Queues a request."""
        self._waiting.append(Asked.of(request))

    def deal(self, hand_out: Callable[[Replica, Request], None]) -> None:
        """Gives requests to replicas that have room, suspects first, the others in the order they came in."""
        for queue in (self._suspects, self._waiting):
            while queue:
                replica = least_loaded(self._replicas, self._most_sequences, queue[0])
                if replica is None:
                    break
                asked = queue.popleft()
                replica.dealt[asked.request.key] = asked
                hand_out(replica, asked.request)

    def drop(self, keys: Set[str] | None) -> list[tuple[Replica, list[str]]]:
        """Forgets requests, or all; returns the replicas that had some, with their keys."""
        for queue in (self._waiting, self._suspects):
            kept = [asked for asked in queue if keys is not None and asked.request.key not in keys]
            queue.clear()
            queue.extend(kept)
        dropped = []
        for replica in self._replicas:
            gone = [key for key in replica.dealt if keys is None or key in keys]
            for key in gone:
                del replica.dealt[key]
            if gone:
                dropped.append((replica, gone))
        return dropped

    def take(self, replica: Replica, found: StepResult) -> StepResult:
        """What a step of a replica has brought for callers; nothing of requests that were dropped."""
        seen = (
            replica.dealt[event.key].unseen(event) for event in found.events if event.key in replica.dealt
        )
        events = [event for event in seen if event is not None]
        finished = [
            replica.dealt.pop(output.key).completed(output)
            for output in found.finished
            if output.key in replica.dealt
        ]
        return StepResult(events, finished)

    def take_back(self, replica: Replica, how_it_ended: str) -> list[RequestOutput]:
        """Queues the requests again that an ended replica had; returns the results of those to blame."""
        failed, others = [], []
        for asked in replica.begin_again():
            if asked.has_begun:
                asked.ended_workers.append(how_it_ended)
            asked.begin_again()
            if len(asked.ended_workers) >= MOST_ENDED_WORKERS:
                failed.append(asked.blamed())
            elif asked.is_suspect:
                self._suspects.append(asked)
            else:
                others.append(asked)
        self._waiting.extendleft(reversed(others))
        return failed
