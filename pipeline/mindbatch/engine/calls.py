"""Batches the calls of any number of threads in one engine; one thread at a time runs MindSpore."""

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from mindbatch.decoding.registry import strategy_for
from mindbatch.engine.engine import StepEngine, StepResult
from mindbatch.engine.request import Request, RequestOutput, StreamEvent
from mindbatch.io.errors import MindBatchError, PromptError
from mindbatch.io.interrupts import interruptible, sigint_kept


class FairLock:
    """A lock that its holder gets again only after the threads that wait for it.

    The thread that computes acquires it again at once: with `threading.Lock` alone all others would wait
    until its last step.
    """

    def __init__(self) -> None:
        self._next = threading.Lock()  # held by the first of the threads that wait
        self._lock = threading.Lock()
        self._holder: int | None = None

    def __enter__(self) -> None:
        if self._holder == threading.get_ident():
            raise MindBatchError("a function that is called while the model computes may not call a model")
        with self._next:
            self._lock.acquire()
        self._holder = threading.get_ident()

    def __exit__(self, *error: object) -> None:
        self._holder = None
        self._lock.release()


mindspore_lock = FairLock()
"""Held while a model is loaded, a graph compiled, a step computed.

MindSpore 2.9 ends the process where two threads compile or run at the same time, of one model or of two. One
after the other they may: a graph may be run by another thread than compiled it.
"""

_process: int | None = None  # that loaded the first model


@contextmanager
def loading() -> Iterator[None]:
    """Holds the lock while a model is loaded.

    Raises:
        MindBatchError: this process was forked from one that had loaded a model.
    """
    global _process
    _process = _process or os.getpid()
    refuse_forked(_process)
    with mindspore_lock:
        yield


def refuse_forked(process: int) -> None:
    """Refuses to compute in a fork of the process that loaded the model.

    It would wait for threads that a fork does not copy.

    Raises:
        MindBatchError: this is another process.
    """
    if os.getpid() != process:
        raise MindBatchError(
            f"a model was loaded in process {process} and cannot run in process {os.getpid()}, which was "
            'forked from it; load the model in the process that uses it (multiprocessing: the "spawn" start '
            "method)"
        )


class Inbox(deque[StepResult | Exception]):
    """Receives the results of steps for one call; calls `filled` in the thread that computed the step.

    with_events: False receives finished results only.
    max_waiting: number of log-probabilities, and of events times 4, that may wait to be taken; above it the
        call ends, with an error that is taken first. None is no limit.
    """

    def __init__(
        self,
        filled: Callable[[], object] = lambda: None,
        *,
        with_events: bool = True,
        max_waiting: int | None = None,
    ) -> None:
        super().__init__()
        self._filled, self.with_events, self._max_waiting = filled, with_events, max_waiting
        self._taken, self._brought = 0, 0  # each written by one thread
        self.is_over = False

    def append(self, delivery: StepResult | Exception, /) -> None:
        if self.is_over:
            return
        self._brought += _weight(delivery)
        if self.is_bounded and self._brought - self._taken > (self._max_waiting or 0):
            self.is_over = True
            self.appendleft(NotTakenError("what was generated is not taken: the client reads too slowly"))
        else:
            super().append(delivery)
        self._filled()

    @property
    def is_bounded(self) -> bool:
        """True if it has a limit; its results then leave out the log-probabilities that events had."""
        return self._max_waiting is not None

    def popleft(self) -> StepResult | Exception:
        delivery = super().popleft()
        self._taken += _weight(delivery)
        return delivery


class NotTakenError(MindBatchError):
    """Raised to a caller that does not take its results fast enough."""


_EVENT_WEIGHT = 4


def _weight(delivery: StepResult | Exception) -> int:
    """Returns the memory of a delivery, counted in log-probabilities."""
    if isinstance(delivery, Exception):
        return 0
    return sum(_EVENT_WEIGHT + sum(map(len, event.logprobs or ())) for event in delivery.events)


@dataclass(slots=True)
class _OwnedRequest:
    """Owner of a request of the engine: its inbox, the request as it was added, and its sequences."""

    inbox: Inbox
    request: Request
    sequences: int
    in_background: bool
    has_begun: bool = False


class EngineCalls:
    """Shares one engine among its callers.

    Threads that wait for results compute steps, one thread at a time. A step computes the requests of all
    calls and puts each call's results into its inbox. A request gets a unique key in the engine; its row key,
    which fixes the random numbers, is the caller's.

    Requests of background calls yield to others: those that have not begun are queued behind them, and of
    those that have, the latest begin again where the batch is full. Their results do not change.
    """

    def __init__(self, engine: StepEngine) -> None:
        self._engine: StepEngine | None = engine
        self._process = os.getpid()
        self._engine_keys = map(str, itertools.count())
        self._owners: dict[str, _OwnedRequest] = {}  # by the engine's key, in the order they were added
        # Of calls that have ended; closed without the lock, which a destructor must not wait for.
        self._ended: deque[Inbox] = deque()
        self._over: str | None = None  # why no call is taken any more

    @property
    def engine(self) -> StepEngine:
        """The engine. Raises MindBatchError once it was closed."""
        if self._engine is None:
            raise MindBatchError(self._over or "")
        return self._engine

    @property
    def has_work(self) -> bool:
        """True if any call has unfinished requests."""
        return self._engine is not None and self._engine.has_work

    def add(
        self, requests: Iterable[Request], inbox: Inbox, *, in_background: bool = False
    ) -> list[RequestOutput]:
        """Queues requests; returns a result with an error for each that is refused.

        Raises:
            MindBatchError: the engine was closed, or belongs to the process that this one was forked from.
        """
        refuse_forked(self._process)
        with mindspore_lock:
            self._abort_ended()
            requests = list(requests)
            removed = [] if in_background else self._yield_to(requests)
            try:
                added = [self._add(request, inbox, in_background) for request in requests]
            finally:
                for key in removed:
                    self._add_again(key)
            return [failure for failure in added if failure is not None]

    def _add(self, request: Request, inbox: Inbox, in_background: bool) -> RequestOutput | None:
        key = next(self._engine_keys)
        queued = replace(request, key=key, row_key=request.key, source=request.source or request.key)
        width = strategy_for(request.params).width(request.params)
        self._owners[key] = _OwnedRequest(inbox, request, width, in_background)
        try:
            self.engine.add(queued)
        except PromptError as error:
            del self._owners[key]
            return replace(queued.failure(error), key=request.key)
        return None

    def _yield_to(self, requests: list[Request]) -> list[str]:
        """Removes background requests that would keep these waiting from the engine; returns their keys."""
        background = [pair for pair in self._owners.items() if pair[1].in_background]
        if not (requests and background):
            return []
        free = self.engine.settings.batch_size
        free -= sum(strategy_for(request.params).width(request.params) for request in requests)
        free -= sum(owner.sequences for owner in self._owners.values() if not owner.in_background)
        removed = []
        for key, owner in background:
            free -= owner.sequences
            if free < 0 or not owner.has_begun:
                removed.append(key)
        if removed:
            self.engine.abort({*removed})
        return removed

    def _add_again(self, key: str) -> None:
        """Queues a removed request again; the engine knows nothing of its first run."""
        owner = self._owners.pop(key)
        if (failure := self._add(owner.request, owner.inbox, in_background=True)) is not None:
            owner.inbox.append(StepResult([], [failure]))

    def step(self, is_needed: Callable[[], bool] = lambda: True) -> None:
        """Computes a step for all calls, unless it is no longer needed when the engine is free.

        Raises:
            MindBatchError: the engine belongs to the process that this one was forked from.
            Exception: the step failed; every call ends with it.
        """
        refuse_forked(self._process)
        with interruptible(), mindspore_lock, sigint_kept():
            self._abort_ended()
            if not (is_needed() and self.engine.has_work):
                return
            try:
                self._deliver(self.engine.step())
            except BaseException as error:
                self._fail(f"generation ended: a step of the engine failed: {error!r}", error)
                raise

    def end(self, inbox: Inbox) -> None:
        """Drops the unfinished requests of a call before the next step. Never waits."""
        self._ended.append(inbox)

    def close(self, reason: str) -> None:
        """Ends all calls with an error and closes the engine; later calls raise the same error."""
        with mindspore_lock:
            if self._over is None:
                self._fail(reason)
            if self._engine is not None:
                self._engine.close()
            self._over, self._engine = reason, None

    def _abort_ended(self) -> None:
        while self._ended:
            inbox = self._ended.popleft()
            keys = [key for key, owner in self._owners.items() if owner.inbox is inbox]
            for key in keys:
                del self._owners[key]
            if keys:
                self.engine.abort(set(keys))

    def _deliver(self, result: StepResult) -> None:
        """Puts each call's part of a step into its inbox, under its own keys."""
        parts: dict[int, tuple[Inbox, StepResult]] = {}

        def part(owner: _OwnedRequest) -> StepResult:
            return parts.setdefault(id(owner.inbox), (owner.inbox, StepResult([], [])))[1]

        for event in result.events:
            owner = self._owners[event.key]
            owner.has_begun = True
            if owner.inbox.with_events:
                part(owner).events.append(replace(event, key=owner.request.key))
        for output in result.finished:
            owner = self._owners.pop(output.key)
            if owner.inbox.is_bounded:
                output = replace(output, outputs=[replace(one, logprobs=None) for one in output.outputs])
            part(owner).finished.append(replace(output, key=owner.request.key))
        for inbox, mine in parts.values():
            inbox.append(mine)
            if inbox.is_over:
                self.end(inbox)

    def _fail(self, reason: str, cause: BaseException | None = None) -> None:
        """Ends all calls, as a step that failed half way cannot be continued."""
        error = MindBatchError(reason)
        error.__cause__ = cause
        for inbox in {id(owner.inbox): owner.inbox for owner in self._owners.values()}.values():
            inbox.append(error)
        self._owners.clear()
        self.engine.abort()


class Call:
    """The requests of one caller; unfinished ones are dropped when it is closed or collected."""

    def __init__(
        self, calls: EngineCalls, inbox: Inbox | None = None, *, in_background: bool = False
    ) -> None:
        """`in_background`: yields to other calls, and has no events, which would be repeated."""
        self._calls = calls
        self._in_background = in_background
        self._inbox = Inbox(with_events=not in_background) if inbox is None else inbox
        self._num_unfinished = 0

    @property
    def num_unfinished(self) -> int:
        """Number of requests whose results have not been taken yet."""
        return self._num_unfinished

    def add(self, rows: Iterable[Request | RequestOutput]) -> list[RequestOutput]:
        """Queues requests under the caller's own keys; returns the results with an error, those among the
        rows and those of requests that are refused. Raises what `EngineCalls.add` raises."""
        requests, refused = [], []
        for row in rows:
            if isinstance(row, Request):
                requests.append(row)
            else:
                refused.append(row)
        self._num_unfinished += len(requests)
        failures = self._calls.add(requests, self._inbox, in_background=self._in_background)
        self._num_unfinished -= len(failures)
        return refused + failures

    def next(self) -> StepResult:
        """Returns the next step's result, which may be empty; computes a step if no result is waiting.

        Raises:
            MindBatchError: the engine was closed, or a step failed that another caller computed.
            Exception: the step failed.
        """
        if not self._inbox:
            self._calls.step(lambda: not self._inbox)
        delivery = self._inbox.popleft() if self._inbox else StepResult([], [])
        if isinstance(delivery, Exception):
            raise delivery
        self._num_unfinished -= len(delivery.finished)
        return delivery

    def close(self) -> None:
        """Drops unfinished requests. Never waits."""
        if self._num_unfinished:
            self._num_unfinished = 0
            self._calls.end(self._inbox)

    def __del__(self) -> None:
        self.close()


class Run(Call):
    """A call whose rows are known from the start; `refused` has the results of rows with errors.

    Iterating yields the events of each step, and each result as it finishes.
    """

    def __init__(
        self, calls: EngineCalls, rows: Iterable[Request | RequestOutput], inbox: Inbox | None = None
    ) -> None:
        super().__init__(calls, inbox)
        self.refused: list[RequestOutput] = []
        self.requests: list[Request] = []
        self.add(rows)

    def add(self, rows: Iterable[Request | RequestOutput]) -> list[RequestOutput]:
        call_rows = list(rows)
        refused = super().add(call_rows)
        keys = {failure.key for failure in refused}
        self.refused += refused
        self.requests += [row for row in call_rows if isinstance(row, Request) and row.key not in keys]
        return refused

    def __iter__(self) -> Iterator[StreamEvent | RequestOutput]:
        try:
            while self.num_unfinished:
                yield from self.next_items()
        finally:
            self.close()

    def next_items(self) -> list[StreamEvent | RequestOutput]:
        result = self.next()
        return [*result.events, *result.finished]
