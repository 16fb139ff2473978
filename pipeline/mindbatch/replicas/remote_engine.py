"""An engine whose replicas run in processes of their own: requests are dealt to them, results collected."""

from __future__ import annotations

import time
from collections.abc import Callable, Set
from dataclasses import replace

from mindbatch.engine.engine import StepEngine, StepResult
from mindbatch.engine.request import Request, RequestOutput
from mindbatch.engine.settings import EngineSettings
from mindbatch.engine.statistics import EngineStatistics, total_of
from mindbatch.errors import CheckpointError, ConfigError, MindBatchError, PromptError
from mindbatch.launch.ranks import EndedRank, Ranks
from mindbatch.parallel.topology import Topology
from mindbatch.replicas.admission import RankAdmission
from mindbatch.replicas.connection import Message, MessageError
from mindbatch.replicas.dealing import Dealing
from mindbatch.replicas.messages import (
    ABORT,
    ADD,
    BEAT,
    BEGUN,
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
from mindbatch.replicas.replica import Replica
from mindbatch.screen_text import say

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
    max_restarts: how often a replica that has ended is started again, all of them together.
    warn: is told of each of those.
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
        max_restarts: int = 0,
        warn: Callable[[str], None] = say,
    ) -> None:
        # So many as all replicas have: whoever feeds this engine reckons with it.
        self.settings = replace(settings, batch_size=settings.batch_size * topology.data_parallel)
        self.replicas = [
            Replica(index, topology.ranks_of(index), topology.leader_of(index))
            for index in range(topology.data_parallel)
        ]
        # A few more than its batch, so that it need not wait for the next one.
        self._dealing = Dealing(self.replicas, settings.batch_size + max(2, settings.batch_size // 4))
        self._checks = checks
        self._topology = topology
        self._links, self._ranks, self._admission = links, ranks, admission
        self._notice, self._shown, self._warn = notice, "", warn
        self._restarts, self._max_restarts = 0, max_restarts
        self._gone: dict[int, float] = {}  # ranks whose connection has ended, and when
        self._next_check = 0.0
        self._answers: dict[str, Callable[[int, Message], StepResult | None]] = {
            HELLO: self._greet,
            MODEL: self._compare,
            NOTICE: self._show,
            READY: self._take_ready,
            BEGUN: self._take_begun,
            STEP: self._take_step,
            BEAT: lambda rank, message: None,
            FAILED: self._fail,
        }

    @property
    def has_work(self) -> bool:
        return self._dealing.has_work

    @property
    def statistics(self) -> EngineStatistics:
        """The sum of what the replicas have said last, in all attempts; what waits here waits too."""
        idle = self._checks.statistics
        now = [replica.statistics or idle for replica in self.replicas]
        total = total_of([*now, *(each for replica in self.replicas for each in replica.earlier)])
        return replace(total, waiting_requests=total.waiting_requests + self._dealing.num_waiting)

    def add(self, request: Request) -> None:
        """Queues a request; raises what `Engine.add` raises, and PromptError for a function as parameter."""
        if request.params.prefix_allowed_tokens_fn is not None:
            raise PromptError(
                f"{request.key}: decoding.prefix_allowed_tokens_fn: a function cannot be called from the "
                "processes of other ranks; leave it out, or set parallel.data_parallel and the like to 1"
            )
        self._checks.add(request)
        self._checks.abort({request.key})
        self._dealing.add(request)

    def step(self) -> StepResult:
        """What replicas have brought, waited for a moment.

        Raises:
            MindBatchError: a rank has ended or failed, and may not be started again.
        """
        self._dealing.deal(self._hand_out)
        result = StepResult([], [])
        arrival = self._links.next(WAIT_SECONDS)
        while arrival is not None:
            found = self._answer(arrival)
            if found is not None:
                result.events.extend(found.events)
                result.finished.extend(found.finished)
            arrival = self._links.next(0)
        result.finished.extend(self._check_ranks())
        self._dealing.deal(self._hand_out)
        return result

    def abort(self, keys: Set[str] | None = None) -> None:
        """See `Engine.abort`."""
        for replica, dropped in self._dealing.drop(keys):
            self._links.send(replica.leader, ABORT, keys=dropped)

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

    def _hand_out(self, replica: Replica, request: Request) -> None:
        fields, arrays = request_parts(request)
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

    def _take_begun(self, rank: int, message: Message) -> None:
        dealt = self._replica_of(rank).dealt
        for key in message.fields["keys"]:
            if key in dealt:
                dealt[key].has_begun = True

    def _take_step(self, rank: int, message: Message) -> StepResult:
        replica = self._replica_of(rank)
        replica.statistics = statistics_of(message.fields["statistics"])
        return self._dealing.take(replica, result_of(message.fields))

    def _fail(self, rank: int, message: Message) -> StepResult:
        """A rank that has said why it ends."""
        error = failure_of(message.fields)
        if isinstance(error, CheckpointError | ConfigError):  # it would be the same again
            raise error
        faults = [f"rank {rank}: {fault}" for fault in error.faults]
        return StepResult([], self.lose(self._replica_of(rank), *faults))

    def _check_ranks(self) -> list[RequestOutput]:
        """Looks at the processes now and then; returns the results of requests that have ended two."""
        now = time.monotonic()
        if now < self._next_check:
            return []
        self._next_check = now + _CHECK_SECONDS
        lost: dict[int, list[str]] = {}  # by replica: the first of its ranks is the one to name
        for ended in self._ranks.ended():
            lost.setdefault(self._replica_of(ended.rank).index, _how(ended))
        for rank, since in self._gone.items():
            if now - since > _SECONDS_TO_END:
                lost.setdefault(self._replica_of(rank).index, [f"rank {rank}: its connection has ended"])
        return [failed for index, how in lost.items() for failed in self.lose(self.replicas[index], *how)]

    def lose(self, replica: Replica, reason: str, *more: str) -> list[RequestOutput]:
        """Starts a replica again that has ended, or hangs; returns the results of requests that are to blame.

        Raises:
            MindBatchError: it may not be started again.
        """
        if self._restarts == self._max_restarts:
            raise MindBatchError([reason, *more])
        self._restarts += 1
        self._warn(f"{reason}; started again ({self._restarts} of {self._max_restarts} times)")
        failed = self._dealing.take_back(replica, reason)
        for rank in replica.ranks:
            self._gone.pop(rank, None)
        self._links.renew(replica.ranks, replica.attempt)
        self._ranks.restart(replica.index, replica.attempt)
        return failed


def _how(ended: EndedRank) -> list[str]:
    lines = [f"rank {ended.rank}: {line}" for line in ended.last_lines]
    return [f"rank {ended.rank} ended with {ended.how}", *lines]
