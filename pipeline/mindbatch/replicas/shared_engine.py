"""The engines of a script that a launcher runs as several copies: rank 0 computes and shares its results.

Every copy makes the same calls, so that its n-th request is the n-th of all. Rank 0 shares its requests and
the results of its steps; the other copies wait for these.
"""

import hashlib
import json
import time
import weakref
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import asdict
from queue import Empty, SimpleQueue
from typing import Any, NoReturn

from mindbatch.engine.engine import StepEngine, StepResult
from mindbatch.engine.request import Request
from mindbatch.engine.settings import EngineSettings
from mindbatch.engine.statistics import EngineStatistics
from mindbatch.io.errors import MindBatchError
from mindbatch.launch.launcher_environment import SAME_CALLS
from mindbatch.parallel.connection import RankMessage
from mindbatch.replicas.messages import (
    failure_fields,
    failure_of,
    request_fields,
    result_fields,
    result_of,
)
from mindbatch.replicas.remote_engine import WAIT_SECONDS, RemoteEngine, refuse_as_ranks
from mindbatch.replicas.remote_nodes import RemoteNode
from mindbatch.replicas.request_queue import InFlightRequest

MAX_SECONDS_APART = 1800.0
"""Maximum seconds by which rank 0 may make a call later than another."""


def digest_of(request: Request) -> str:
    """Hashes everything that decides the result of a request."""
    content = json.dumps(request_fields(request), sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


class SharingEngine:
    """Rank 0's engine, which shares its requests and results with the copies of the script.

    model: describes the model and how it is loaded. check: called before each step; may raise.
    """

    def __init__(
        self,
        engine: RemoteEngine,
        copies: Sequence[RemoteNode],
        model: str = "",
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings = engine.settings
        self._engine, self._copies, self._model, self._check = engine, copies, model, check
        self._unshared: list[tuple[str, str]] = []

    @property
    def has_work(self) -> bool:
        return self._engine.has_work

    @property
    def statistics(self) -> EngineStatistics:
        return self._engine.statistics

    def add(self, request: Request) -> None:
        self._engine.add(request)
        self._unshared.append((request.key, digest_of(request)))

    def step(self) -> StepResult:
        """Runs a step and shares its result with the copies.

        Raises:
            MindBatchError: a copy has left; or what the check or `RemoteEngine.step` raises.
        """
        try:
            self._check()
            for copy in self._copies:
                if copy.has_left:
                    which = f"rank {copy.ranks.start}"
                    raise MindBatchError(f"{which} has closed its model before rank 0 was done: {SAME_CALLS}")
            result = self._engine.step()
        except Exception as error:
            self.share(failure=failure_fields(error))
            raise
        if self._unshared or result.events or result.finished:
            requests, self._unshared = self._unshared, []
            self.share(requests=requests, statistics=asdict(self.statistics), **result_fields(result))
        return result

    def wait_until_ready(self) -> None:
        try:
            self._engine.wait_until_ready()
        except Exception as error:
            self.share(failure=failure_fields(error))
            raise
        self.share(model=self._model)

    def abort(self, keys: Set[str] | None = None) -> None:
        self._engine.abort(keys)
        if keys is not None:
            self.share(aborted=[*keys])

    def close(self) -> None:
        self._engine.close()

    def share(self, **fields: Any) -> None:
        for copy in self._copies:
            copy.share(**fields)


class FollowingEngine:
    """Engine of another copy: returns what rank 0 has computed for the same requests.

    settings: settings of rank 0's engine. checks: an engine that accepts and refuses requests as ranks do.
    shared: messages of rank 0; None if it has closed its model, or ended.
    end: reports to rank 0 that this copy is done, and ends its ranks; called when this is closed or
        collected.
    check: as of SharingEngine.
    """

    def __init__(
        self,
        settings: EngineSettings,
        checks: StepEngine,
        shared: SimpleQueue[RankMessage | None],
        end: Callable[[], None],
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings = settings
        self.statistics: EngineStatistics = checks.statistics
        self._checks, self._shared, self._check = checks, shared, check
        self._requested: dict[str, InFlightRequest] = {}
        self._mine: dict[str, str] = {}  # digests of requests that rank 0 has not made yet
        self._theirs: dict[str, str] = {}  # and of those that were not made here yet
        self._early = StepResult([], [])  # what they have brought
        self._next = 0
        self._last_message = time.monotonic()
        self._over: MindBatchError | None = None
        self._end = weakref.finalize(self, end)

    @property
    def has_work(self) -> bool:
        return bool(self._requested)

    def wait_until_ready(self, notice: Callable[[str], None], model: str = "") -> None:
        """Returns when rank 0 has loaded the model.

        Raises:
            MindBatchError: what it has raised; or it has loaded another one.
        """
        notice("waiting for rank 0 to load the model")
        message = self._shared.get()
        if message is None:
            raise MindBatchError("rank 0 has ended before it had loaded the model")
        if "failure" in message.fields:
            raise failure_of(message.fields["failure"])
        if message.fields["model"] != model:
            raise MindBatchError(
                f"the LLM of this process has other arguments than that of rank 0: {SAME_CALLS}"
            )
        notice("")

    def add(self, request: Request) -> None:
        """Queues a request; raises what `Engine.add` raises, and MindBatchError if rank 0's is another."""
        if self._over is not None:
            raise self._over
        refuse_as_ranks(request, self._checks)
        self._next = int(request.key) + 1
        self._requested[request.key] = InFlightRequest.of(request)
        self._mine[request.key] = digest_of(request)
        self._compare()

    def step(self) -> StepResult:
        """Receives the result of rank 0's next step, waiting for a moment.

        Raises:
            MindBatchError: what rank 0's has raised; or it has made other calls, or none for too long.
        """
        if self._over is not None:
            raise self._over
        self._check()
        early, self._early = self._early, StepResult([], [])
        if any(result := self._part_of(early)):
            return result
        try:
            message = self._shared.get(timeout=WAIT_SECONDS)
        except Empty:
            if self._mine and time.monotonic() - self._last_message > MAX_SECONDS_APART:
                self._fail(f"rank 0 has not made this call for {MAX_SECONDS_APART:.0f} s: {SAME_CALLS}")
            return result
        self._last_message = time.monotonic()
        if message is None:
            self._fail(f"rank 0 has ended, or closed its model, before this call was over: {SAME_CALLS}")
        return self._taken(message.fields)

    def abort(self, keys: Set[str] | None = None) -> None:
        for key in [*self._requested] if keys is None else keys:
            self._requested.pop(key, None)

    def close(self) -> None:
        """Tells rank 0, and ends the ranks of this copy."""
        self._end()

    def _taken(self, fields: Mapping[str, Any]) -> StepResult:
        if "failure" in fields:
            self._over = failure_of(fields["failure"])
            raise self._over
        if "aborted" in fields:
            if any(key in self._requested for key in fields["aborted"]):
                self._fail(f"rank 0 has dropped a request that is waited for here: {SAME_CALLS}")
            return StepResult([], [])
        self._theirs.update(fields["requests"])
        self._compare()
        self.statistics = EngineStatistics(**fields["statistics"])
        return self._part_of(result_of(fields))

    def _compare(self) -> None:
        for key in self._mine.keys() & self._theirs.keys():
            if self._mine.pop(key) != self._theirs.pop(key):
                self._fail(f"request {int(key) + 1} of this process is not that of rank 0: {SAME_CALLS}")

    def _part_of(self, result: StepResult) -> StepResult:
        """Selects the part for requests that were made here; that for requests to come is kept for them."""
        mine = StepResult([], [])
        for event in result.events:
            if event.key in self._requested:
                mine.events.append(event)
            elif int(event.key) >= self._next:
                self._early.events.append(event)
        for output in result.finished:
            if output.key in self._requested:
                mine.finished.append(self._requested.pop(output.key).completed(output))
            elif int(output.key) >= self._next:
                self._early.finished.append(output)
        return mine

    def _fail(self, reason: str) -> NoReturn:
        self._over = MindBatchError(reason)
        raise self._over
