"""One queue of requests for all replicas: dispatches them as replicas have capacity, and requeues them."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field, replace

from mindbatch.decoding.registry import strategy_for
from mindbatch.engine.engine import StepResult
from mindbatch.engine.request import Request, RequestOutput, StreamEvent
from mindbatch.engine.statistics import EngineStatistics
from mindbatch.io.errors import PromptError


@dataclass(slots=True)
class _Extent:
    """Length of one sample so far, and if it has ended."""

    tokens: int = 0
    characters: int = 0
    has_ended: bool = False


@dataclass(slots=True, eq=False)
class InFlightRequest:
    """A request that is not finished.

    sequences: its maximum number of sequences. started: time of adding it (`time.perf_counter`).
    ended_workers: the exit reasons of the processes that ended while they had it.
    """

    request: Request
    sequences: int
    started: float = field(default_factory=time.perf_counter)
    ended_workers: list[str] = field(default_factory=list)
    _seen: dict[int, _Extent] = field(default_factory=dict)
    _brought: dict[int, _Extent] = field(default_factory=dict)

    @classmethod
    def of(cls, request: Request) -> InFlightRequest:
        return cls(request, strategy_for(request.params).width(request.params))

    @property
    def is_suspect(self) -> bool:
        """True if the request may be what ended a process."""
        return bool(self.ended_workers)

    def begin_again(self) -> None:
        """Resets the request, as its replica has ended: another computes it from the start."""
        self._brought.clear()

    def unseen(self, event: StreamEvent) -> StreamEvent | None:
        """Removes from an event what its caller has seen already; recomputed output is the same."""
        seen = self._seen.setdefault(event.index, _Extent())
        brought = self._brought.setdefault(event.index, _Extent())
        brought.tokens += len(event.token_ids)
        brought.characters += len(event.text)
        tokens = max(0, brought.tokens - seen.tokens)
        characters = max(0, brought.characters - seen.characters)
        ends = event.finish_reason is not None and not seen.has_ended
        if not (tokens or characters or ends):
            return None
        seen.tokens, seen.characters = seen.tokens + tokens, seen.characters + characters
        seen.has_ended |= ends
        return replace(
            event,
            text=event.text[len(event.text) - characters :],
            token_ids=event.token_ids[len(event.token_ids) - tokens :],
            logprobs=event.logprobs and event.logprobs[len(event.token_ids) - tokens :],
        )

    def completed(self, output: RequestOutput) -> RequestOutput:
        """Completes an output of another process with the fields that stay in this one."""
        request = self.request
        if output.error is not None:
            return request.failure(PromptError(output.error))
        return replace(
            output,
            prompt=request.prompt,
            prompt_token_ids=list(request.prompt_token_ids),
            adapter=request.adapter,
            seconds=time.perf_counter() - self.started,
        )

    def failed_result(self) -> RequestOutput:
        last = self.ended_workers[-1]
        times = len(self.ended_workers)
        return self.request.failure(
            PromptError(f"the process that computed it ended {times} times, the last time: {last}")
        )


@dataclass
class Replica:
    """One replica.

    ranks: its global ranks. leader: the rank that runs its engine.
    attempt: number of its earlier starts.
    waiting_for: the ranks that are not ready.
    notice: what the leader loads or compiles, in words; empty if nothing.
    in_flight: its unfinished requests, by key.
    statistics: the latest statistics of its engine. earlier: the final ones of earlier attempts.
    """

    index: int
    ranks: range
    leader: int
    attempt: int = 0
    waiting_for: set[int] = field(default_factory=set)
    notice: str = ""
    in_flight: dict[str, InFlightRequest] = field(default_factory=dict)
    statistics: EngineStatistics | None = None
    earlier: list[EngineStatistics] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.waiting_for = set(self.ranks)

    @property
    def is_ready(self) -> bool:
        return not self.waiting_for

    @property
    def num_sequences(self) -> int:
        return sum(flight.sequences for flight in self.in_flight.values())

    @property
    def has_suspects(self) -> bool:
        """True if its requests may have ended a process: then it gets no others."""
        return any(flight.is_suspect for flight in self.in_flight.values())

    def begin_again(self) -> list[InFlightRequest]:
        """Begins another attempt; returns the requests that it had."""
        left = list(self.in_flight.values())
        if self.statistics is not None:
            self.earlier.append(self.statistics.at_rest())
        self.attempt += 1
        self.waiting_for, self.notice, self.statistics = set(self.ranks), "", None
        self.in_flight.clear()
        return left


def least_loaded(replicas: Iterable[Replica], max_sequences: int) -> Replica | None:
    """Returns the ready replica with the fewest sequences, the first of equals; None if all have
    `max_sequences`.

    So each has a little more than its batch, the rest waits here for free capacity, and all end at about the
    same time, whatever the rows' lengths.
    """
    free = [
        replica
        for replica in replicas
        if replica.is_ready and replica.num_sequences < max_sequences and not replica.has_suspects
    ]
    return min(free, key=lambda replica: replica.num_sequences, default=None)


MAX_ENDED_WORKERS = 2
"""Number of processes that end with a request, the last with it alone, before it fails."""

_MAX_GROUPS = 16


class RequestQueue:
    """The unfinished requests of a job.

    Suspects are requests with which a process has ended. They run again without other requests: each alone
    or, if they are many, in a few groups. If the process ends again, the cause is narrowed down; only a
    request that was alone fails.

    at_once: number of sequences that a replica computes at a time.
    spare: number of further sequences that it gets, so that it need not wait for the next; 0 near the end,
        where other replicas may compute them earlier.
    """

    def __init__(self, replicas: Sequence[Replica], at_once: int, spare: int = 0) -> None:
        self._replicas = replicas
        self._at_once, self._spare = at_once, spare
        self._waiting: deque[InFlightRequest] = deque()
        self._suspects: deque[list[InFlightRequest]] = deque()

    @property
    def has_work(self) -> bool:
        return bool(self.num_waiting) or any(replica.in_flight for replica in self._replicas)

    @property
    def num_waiting(self) -> int:
        """Number of requests that no replica has."""
        return len(self._waiting) + sum(map(len, self._suspects))

    def add(self, request: Request) -> None:
        self._waiting.append(InFlightRequest.of(request))

    def dispatch(self, send: Callable[[Replica, Request], None]) -> None:
        """Sends requests to replicas with free capacity: suspects first, the others in the order of
        arrival."""
        for replica in self._replicas:
            if self._suspects and replica.is_ready and not replica.in_flight:
                for flight in self._suspects.popleft():
                    self._give(replica, flight, send)
        while self._waiting and (least := least_loaded(self._replicas, self._max_sequences())) is not None:
            self._give(least, self._waiting.popleft(), send)

    def _max_sequences(self) -> int:
        """Returns the maximum number of sequences of a replica, with a new request."""
        is_near_the_end = len(self._waiting) <= self._at_once * len(self._replicas)
        return self._at_once if is_near_the_end else self._at_once + self._spare

    def _give(
        self, replica: Replica, flight: InFlightRequest, send: Callable[[Replica, Request], None]
    ) -> None:
        replica.in_flight[flight.request.key] = flight
        send(replica, flight.request)

    def drop(self, keys: Set[str] | None) -> list[tuple[Replica, list[str]]]:
        """Drops requests, or all; returns the replicas that had some, with their keys."""

        def is_kept(flight: InFlightRequest) -> bool:
            return keys is not None and flight.request.key not in keys

        self._waiting = deque(filter(is_kept, self._waiting))
        groups = (list(filter(is_kept, group)) for group in self._suspects)
        self._suspects = deque(group for group in groups if group)
        dropped = []
        for replica in self._replicas:
            gone = [key for key in replica.in_flight if keys is None or key in keys]
            for key in gone:
                del replica.in_flight[key]
            if gone:
                dropped.append((replica, gone))
        return dropped

    def take(self, replica: Replica, result: StepResult) -> StepResult:
        """Returns the new part of a replica's step result, without dropped requests."""
        seen = (
            replica.in_flight[event.key].unseen(event)
            for event in result.events
            if event.key in replica.in_flight
        )
        events = [event for event in seen if event is not None]
        finished = [
            replica.in_flight.pop(output.key).completed(output)
            for output in result.finished
            if output.key in replica.in_flight
        ]
        return StepResult(events, finished)

    def requeue(self, replica: Replica, exit_reason: str, *, may_be_a_row: bool) -> list[RequestOutput]:
        """Queues the requests of an ended replica again; returns the results of those that fail.

        may_be_a_row: True if a request may have ended the replica.
        """
        lost = replica.begin_again()
        for flight in lost:
            if may_be_a_row:
                flight.ended_workers.append(exit_reason)
            flight.begin_again()
        if len(lost) == 1 and len(lost[0].ended_workers) >= MAX_ENDED_WORKERS:
            return [lost[0].failed_result()]
        suspects = [flight for flight in lost if flight.is_suspect]
        self._waiting.extendleft(flight for flight in reversed(lost) if not flight.is_suspect)
        if suspects:
            size = math.ceil(len(suspects) / _MAX_GROUPS) if may_be_a_row else len(suspects)
            starts = range(0, len(suspects), size)
            self._suspects.extendleft(suspects[start : start + size] for start in reversed(starts))
        return []
