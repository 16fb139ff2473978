"""An engine whose replicas run in processes of their own: requests are dealt to them, results collected."""

from collections.abc import Callable, Set
from dataclasses import replace

from mindbatch.engine.engine import StepEngine, StepResult
from mindbatch.engine.request import Request, RequestOutput
from mindbatch.engine.settings import EngineSettings
from mindbatch.engine.statistics import EngineStatistics, total_of
from mindbatch.io.errors import CheckpointError, ConfigError, MindBatchError, PromptError, RankError
from mindbatch.io.screen_text import say
from mindbatch.launch.job_ranks import JobRanks
from mindbatch.parallel.connection import MessageError
from mindbatch.parallel.topology import Topology
from mindbatch.replicas import messages
from mindbatch.replicas.dealing import Dealing, Replica
from mindbatch.replicas.messages import RankAdmission
from mindbatch.replicas.rank_links import Arrival, RankLinks
from mindbatch.replicas.supervision import Failure, Supervision

WAIT_SECONDS = 0.1
"""The longest wait for a message: signals are put off meanwhile, and others may want the engine."""


def job_settings(settings: EngineSettings, topology: Topology) -> EngineSettings:
    """Settings of an engine over all replicas, which has the batches of all of them."""
    batches = topology.pipeline_stage * topology.data_parallel  # each stage has one
    return replace(settings, batch_size=settings.batch_size * batches)


def refuse_as_ranks(request: Request, checks: StepEngine) -> None:
    """Raises PromptError for what ranks would refuse. checks: an engine that does as theirs."""
    if request.params.prefix_allowed_tokens_fn is not None:
        raise PromptError(
            f"{request.key}: decoding.prefix_allowed_tokens_fn: a function cannot be called from the "
            "processes of other ranks; leave it out, or set parallel.data_parallel and the like to 1"
        )
    checks.add(request)
    checks.abort({request.key})


_KILLED = (
    "signal 9: killed, by the system where memory has run out; model.dtype=bfloat16, a smaller "
    "runtime.cache_memory or fewer ranks on a machine take less"
)


class RemoteEngine:
    """Runs requests over the replicas of a job.

    settings: of an engine; a replica has one for each pipeline stage.
    checks: an engine that accepts and refuses as theirs do.
    admission: what ranks are told, and which of them may take part.
    notice: see `build.load_engine`.
    max_restarts: how often a replica that has ended is started again, all of them together.
    hang_seconds: see `Supervision`.
    warn: is told of each of those.
    """

    def __init__(
        self,
        settings: EngineSettings,
        checks: StepEngine,
        topology: Topology,
        links: RankLinks,
        ranks: JobRanks,
        admission: RankAdmission,
        notice: Callable[[str], None],
        max_restarts: int = 0,
        hang_seconds: float = 60.0,
        warn: Callable[[str], None] = say,
    ) -> None:
        self.settings = job_settings(settings, topology)
        at_once = self.settings.batch_size // topology.data_parallel
        self.replicas = [
            Replica(index, topology.ranks_of(index), topology.leader_of(index))
            for index in range(topology.data_parallel)
        ]
        self._dealing = Dealing(self.replicas, at_once, spare=max(2, at_once // 4))
        self._checks = checks
        self._topology = topology
        self._links, self._ranks, self._admission = links, ranks, admission
        self._notice, self._shown, self._warn = notice, "", warn
        self._restarts, self._max_restarts = 0, max_restarts
        self._supervision = Supervision(ranks, topology, hang_seconds)
        self._over: MindBatchError | None = None
        self.kernels: set[str] = set()

    @property
    def has_work(self) -> bool:
        return self._dealing.has_work

    @property
    def statistics(self) -> EngineStatistics:
        """The sum of what the replicas have said last, in all attempts; what waits here waits too."""
        idle = self._checks.statistics
        now = [replica.statistics or idle for replica in self.replicas]
        total = total_of([*now, *(statistics for replica in self.replicas for statistics in replica.earlier)])
        return replace(total, waiting_requests=total.waiting_requests + self._dealing.num_waiting)

    def add(self, request: Request) -> None:
        """Queues a request; raises what `Engine.add` raises, and PromptError for a function as parameter."""
        refuse_as_ranks(request, self._checks)
        self._dealing.add(request)

    def step(self) -> StepResult:
        """Collects what replicas have brought, waiting for a moment.

        Raises:
            RankError: a rank has ended, failed or hangs, and may not be started again. What was finished
                until then has been returned.
        """
        if self._over is not None:
            raise self._over
        self._deal()
        result = StepResult([], [])
        arrival = self._links.next(WAIT_SECONDS)
        while arrival is not None:
            answer = self._answer(arrival)
            if answer is not None:
                result.events.extend(answer.events)
                result.finished.extend(answer.finished)
            arrival = self._links.next(0)
        for failure in self._supervision.check():
            result.finished.extend(self._recover(failure))
        self._deal()
        return result

    def abort(self, keys: Set[str] | None = None) -> None:
        for replica, dropped in self._dealing.drop(keys):
            self._links.send(replica.leader, messages.ABORT, keys=dropped)

    def wait_until_ready(self) -> None:
        """Returns when every rank has loaded its part of the model.

        Raises:
            MindBatchError: a rank has refused the model, or ended (RankError).
        """
        while not all(replica.is_ready for replica in self.replicas):
            self.step()
        self._notice("")

    def close(self) -> None:
        self._ranks.end()  # before their connections: a rank would say that it has lost this process
        self._links.close()

    def _deal(self) -> None:
        """Deals requests out, in one message to each leader.

        One that had only the first of them would begin without the others, in steps of other sizes each time,
        for which graphs are compiled.
        """
        dealt: dict[int, list[Request]] = {}
        self._dealing.deal(lambda replica, request: dealt.setdefault(replica.leader, []).append(request))
        for leader, requests in dealt.items():
            self._links.send(leader, messages.ADD, requests=[*map(messages.request_fields, requests)])

    def _answer(self, arrival: Arrival) -> StepResult | None:
        rank, message = arrival
        if message is None:
            self._supervision.disconnected(rank)
            return None
        replica, fields = self.replicas[self._topology.coordinates(rank).replica], message.fields
        match message.kind:
            case messages.STEP:
                replica.statistics = EngineStatistics(**fields["statistics"])
                return self._dealing.take(replica, messages.result_of(fields))
            case messages.BEAT:
                self._supervision.beat(rank, fields)
            case messages.HELLO:
                self._supervision.greet(rank, fields)
                self._links.send(rank, messages.JOB, **self._admission.job(rank, fields))
            case messages.MODEL:
                self._admission.check_model(rank, fields)
            case messages.NOTICE:
                self._show(replica, fields["text"])
            case messages.PEERS:  # where the leader listens, for the replica's other ranks
                for other in replica.ranks:
                    if other != rank:
                        self._links.send(other, messages.PEERS, **fields)
            case messages.READY:
                if kernels := fields.get("kernels"):
                    self.kernels.add(str(kernels))
                replica.waiting_for.discard(rank)
            case messages.FAILED:
                self._take_failure(rank, messages.failure_of(fields))
            case other_kind:
                raise MessageError(f"rank {rank} sent {other_kind!r}, which is not understood")
        return None

    def _show(self, replica: Replica, notice: str) -> None:
        """Shows one notice: that of the first replica which has any."""
        replica.notice = notice
        text = next((replica.notice for replica in self.replicas if replica.notice), "")
        if text != self._shown:
            self._shown = text
            self._notice(text)

    def _take_failure(self, rank: int, error: MindBatchError) -> None:
        if isinstance(error, CheckpointError | ConfigError):  # it would be the same again
            self._over = error
        else:
            self._supervision.failed(rank, error.lines)

    def _recover(self, failure: Failure) -> list[RequestOutput]:
        """Starts a replica again, or ends the job at the next step; returns the results of those to blame."""
        replica = self.replicas[failure.replica]
        blamed = self._dealing.take_back(replica, failure.reason, may_be_a_row=failure.may_be_a_row)
        self._links.renew(replica.ranks, replica.attempt)  # nothing is read of the old processes any more
        self._admission.forget(replica.ranks)
        if self._restarts == self._max_restarts:
            hints = [_KILLED] if failure.reason.endswith("signal 9") else []
            self._over = self._over or RankError([failure.reason, *failure.details, *hints])
            return blamed
        self._restarts += 1
        self._warn(f"{failure.reason}; started again ({self._restarts} of {self._max_restarts} times)")
        for line in failure.details:
            self._warn(line)
        try:
            self._ranks.restart(replica.index, replica.attempt)
        except MindBatchError as error:
            self._over = error
        self._supervision.begin(replica.index)
        return blamed
