"""An engine whose replicas run in processes of their own: requests are dealt to them, results collected."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Set
from dataclasses import replace

from mindbatch.engine.engine import StepEngine, StepResult
from mindbatch.engine.request import Request, RequestOutput
from mindbatch.engine.settings import EngineSettings
from mindbatch.engine.statistics import EngineStatistics, total_of
from mindbatch.errors import MindBatchError, PromptError
from mindbatch.launch.ranks import EndedRank, Ranks
from mindbatch.parallel.topology import Topology
from mindbatch.replicas.admission import RankAdmission
from mindbatch.replicas.connection import Message, MessageError
from mindbatch.replicas.messages import (
    ABORT,
    ADD,
    BEAT,
    FAILED,
    HELLO,
    JOB,
    MODEL,
    NOTICE,
    READY,
    STEP,
    failure_of,
    request_parts,
    result_of,
    statistics_of,
)
from mindbatch.replicas.rank_links import Arrival, RankLinks
from mindbatch.replicas.replica import Asked, Replica, least_loaded

WAIT_SECONDS = 0.1
"""The longest wait for a message: signals are put off meanwhile, and others may want the engine."""
_CHECK_SECONDS = 0.25
_SECONDS_TO_END = 2.0
"""In which a process whose connection has ended is expected to end too, to be asked how."""


class RemoteEngine:
    """Runs requests over the replicas of a job.

    settings: of the engine of one replica. checks: an engine that accepts and refuses as theirs do.
    admission: what ranks are told, and which of them may take part.
    notice: see `build.load_model`.
    """

    def __init__(
        self,
        settings: EngineSettings,
        checks: StepEngine,
        topology: Topology,
        links: RankLinks,
        ranks: Ranks,
        admission: RankAdmission,
        notice: Callable[[str], None],
    ) -> None:
        # So many as all replicas have: whoever feeds this engine reckons with it.
        self.settings = replace(settings, batch_size=settings.batch_size * topology.data_parallel)
        self.replicas = [
            Replica(index, topology.ranks_of(index), topology.leader_of(index))
            for index in range(topology.data_parallel)
        ]
        self._most_sequences = settings.batch_size + max(2, settings.batch_size // 4)
        self._checks = checks
        self._topology = topology
        self._links, self._ranks, self._admission = links, ranks, admission
        self._notice, self._shown = notice, ""
        self._waiting: deque[Asked] = deque()
        self._gone: dict[int, float] = {}  # ranks whose connection has ended, and when
        self._next_check = 0.0
        self._answers: dict[str, Callable[[int, Message], StepResult | None]] = {
            HELLO: self._greet,
            MODEL: self._compare,
            NOTICE: self._show,
            READY: self._take_ready,
            STEP: self._take_step,
            BEAT: lambda rank, message: None,
            FAILED: self._fail,
        }

    @property
    def has_work(self) -> bool:
        return bool(self._waiting) or any(replica.dealt for replica in self.replicas)

    @property
    def statistics(self) -> EngineStatistics:
        """The sum of what the replicas have said last; what waits here waits too."""
        known = [replica.statistics for replica in self.replicas if replica.statistics is not None]
        total = total_of(known or [self._checks.statistics])
        return replace(total, waiting_requests=total.waiting_requests + len(self._waiting))

    def add(self, request: Request) -> None:
        """Queues a request; raises what `Engine.add` raises, and PromptError for a function as parameter."""
        if request.params.prefix_allowed_tokens_fn is not None:
            raise PromptError(
                f"{request.key}: decoding.prefix_allowed_tokens_fn: a function cannot be called from the "
                "processes of other ranks; leave it out, or set parallel.data_parallel and the like to 1"
            )
        self._checks.add(request)
        self._checks.abort({request.key})
        self._waiting.append(Asked.of(request))

    def step(self) -> StepResult:
        """What replicas have brought, waited for a moment.

        Raises:
            MindBatchError: a rank has ended or failed.
        """
        self._deal()
        result = StepResult([], [])
        arrival = self._links.next(WAIT_SECONDS)
        while arrival is not None:
            found = self._answer(arrival)
            if found is not None:
                result.events.extend(found.events)
                result.finished.extend(found.finished)
            arrival = self._links.next(0)
        self._check_ranks()
        self._deal()
        return result

    def abort(self, keys: Set[str] | None = None) -> None:
        """See `Engine.abort`."""
        self._waiting = deque(
            asked for asked in self._waiting if keys is not None and asked.request.key not in keys
        )
        for replica in self.replicas:
            gone = [key for key in replica.dealt if keys is None or key in keys]
            for key in gone:
                del replica.dealt[key]
            if gone:
                self._links.send(replica.leader, ABORT, keys=gone)

    def wait_until_ready(self) -> None:
        """Returns when every rank has loaded its part of the model.

        Raises:
            MindBatchError: a rank has refused the model, or ended.
        """
        while not all(replica.is_ready for replica in self.replicas):
            self.step()
        self._notice("")

    def close(self) -> None:
        """Ends the processes of all ranks."""
        self._links.close()
        self._ranks.end()

    def _deal(self) -> None:
        """Hands requests out, in the order in which they came, as long as a replica has room."""
        while self._waiting:
            replica = least_loaded(self.replicas, self._most_sequences)
            if replica is None:
                return
            asked = self._waiting.popleft()
            replica.dealt[asked.request.key] = asked
            fields, arrays = request_parts(asked.request)
            self._links.send(replica.leader, ADD, arrays, **fields)

    def _answer(self, arrival: Arrival) -> StepResult | None:
        rank, message = arrival
        if message is None:
            self._gone.setdefault(rank, time.monotonic())
            return None
        answer = self._answers.get(message.kind)
        if answer is None:
            raise MessageError(f"rank {rank} sent {message.kind!r}, which is not understood")
        return answer(rank, message)

    def _replica_of(self, rank: int) -> Replica:
        return self.replicas[self._topology.coordinates(rank).replica]

    def _greet(self, rank: int, message: Message) -> None:
        self._links.send(rank, JOB, **self._admission.job(rank, message.fields))

    def _compare(self, rank: int, message: Message) -> None:
        self._admission.check_model(rank, message.fields)

    def _show(self, rank: int, message: Message) -> None:
        """Shows one notice: that of the first replica which has any."""
        self._replica_of(rank).notice = message.fields["text"]
        text = next((replica.notice for replica in self.replicas if replica.notice), "")
        if text != self._shown:
            self._shown = text
            self._notice(text)

    def _take_ready(self, rank: int, message: Message) -> None:
        self._replica_of(rank).waiting_for.discard(rank)

    def _take_step(self, rank: int, message: Message) -> StepResult:
        """What a step of a replica has brought; requests that were dropped meanwhile are not in it."""
        replica = self._replica_of(rank)
        replica.statistics = statistics_of(message.fields["statistics"])
        found = result_of(message.fields)
        events = [event for event in found.events if event.key in replica.dealt]
        finished = [
            _completed(output, replica.dealt.pop(output.key))
            for output in found.finished
            if output.key in replica.dealt
        ]
        return StepResult(events, finished)

    def _fail(self, rank: int, message: Message) -> None:
        error = failure_of(message.fields)
        if type(error) is MindBatchError:
            error = MindBatchError(f"rank {rank}: {fault}" for fault in error.faults)
        raise error

    def _check_ranks(self) -> None:
        """Raises a MindBatchError if a rank has ended; looks at the processes now and then."""
        now = time.monotonic()
        if now < self._next_check:
            return
        self._next_check = now + _CHECK_SECONDS
        for ended in self._ranks.ended():
            raise _ended(ended)
        for rank, since in self._gone.items():
            if now - since > _SECONDS_TO_END:
                raise MindBatchError(f"rank {rank}: its connection has ended")


def _completed(output: RequestOutput, asked: Asked) -> RequestOutput:
    """An output as the engine of this process would have given it."""
    request, seconds = asked.request, time.perf_counter() - asked.started
    if output.error is not None:
        reason = output.error.removeprefix(f"{request.key}: ")
        return request.failure(PromptError(reason))
    return replace(
        output, prompt=request.prompt, prompt_token_ids=list(request.prompt_token_ids), seconds=seconds
    )


def _ended(ended: EndedRank) -> MindBatchError:
    lines = [f"rank {ended.rank}: {line}" for line in ended.last_lines]
    return MindBatchError([f"rank {ended.rank} ended with {ended.how}", *lines])
