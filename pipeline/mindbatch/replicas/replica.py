"""State of one replica as the front knows it: its ranks, how far they are, and its requests."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from mindbatch.decoding.registry import strategy_for
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
    has_begun: whether it was in a step of the replica that has it now.
    ended_workers: how the processes have ended in whose steps it was.
    """

    request: Request
    sequences: int
    started: float = field(default_factory=time.perf_counter)
    has_begun: bool = False
    ended_workers: list[str] = field(default_factory=list)
    _seen: dict[int, _Extent] = field(default_factory=dict)
    _brought: dict[int, _Extent] = field(default_factory=dict)

    @classmethod
    def of(cls, request: Request) -> InFlightRequest:
        """A request that has just come."""
        return cls(request, strategy_for(request.params).width(request.params))

    @property
    def is_suspect(self) -> bool:
        """True if the request may be what ended a process."""
        return bool(self.ended_workers)

    def begin_again(self) -> None:
        """Resets the request, as its replica has ended: another computes it from the start."""
        self.has_begun = False
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
        """Result of a request that has ended two processes."""
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
