"""Replicas and their requests: one queue for all, dealt as replicas have capacity, and dealt again."""

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

    sequences: that it runs at most. started: when it was added (`time.perf_counter`).
    ended_workers: how the processes have ended that had it.
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
        """Cuts an event to what its caller has not seen, if anything: recomputed output is the same."""
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
        """An output of another process as the engine of this one would have given it."""
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

    def blamed(self) -> RequestOutput:
        last = self.ended_workers[-1]
        times = len(self.ended_workers)
        return self.request.failure(
            PromptError(f"the process that computed it ended {times} times, the last time: {last}")
        )


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
        return not self.waiting_for

    @property
    def num_sequences(self) -> int:
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


MOST_ENDED_WORKERS = 2
"""A request with which so many processes have ended, the last one with it alone, is not tried again."""

_MOST_GROUPS = 16


class Dealing:
    """The unfinished requests of a job.

    Suspects, with which a process has ended, run again with nothing else beside them: each alone or,
    where they are many, in a few groups. If the process ends again it is known better whose error that is,
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
