"""An engine whose replicas run in processes of their own: requests are dealt to them, results collected."""

from __future__ import annotations

import time
from collections.abc import Callable, Set
from dataclasses import replace

from mindbatch.engine.engine import StepEngine, StepResult
from mindbatch.engine.request import Request, RequestOutput
from mindbatch.engine.settings import EngineSettings
from mindbatch.engine.statistics import EngineStatistics, total_of
from mindbatch.errors import MindBatchError, PromptError
from mindbatch.launch.ranks import Ranks
from mindbatch.parallel.topology import Topology
from mindbatch.replicas.admission import RankAdmission
from mindbatch.replicas.connection import Message, MessageError
from mindbatch.replicas.dealing import MOST_DEATHS, Dealing
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
from mindbatch.replicas.replica import Asked, Replica
from mindbatch.replicas.supervision import Failure, FailureLimits, Supervision
from mindbatch.screen_text import say

WAIT_SECONDS = 0.1
"""The longest wait for a message: signals are put off meanwhile, and others may want the engine."""


class RemoteEngine:
    """Runs requests over the replicas of a job.

    settings: of the engine of one replica. checks: an engine that accepts and refuses as theirs do.
    admission: what ranks are told, and which of them may take part.
    notice: see `build.load_model`.
    limits: when a rank hangs, and how often replicas are started again.
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
        limits: FailureLimits,
    ) -> None:
        # So many as all replicas have: whoever feeds this engine reckons with it.
        self.settings = replace(settings, batch_size=settings.batch_size * topology.data_parallel)
        self.replicas = [
            Replica(index, topology.ranks_of(index), topology.leader_of(index))
            for index in range(topology.data_parallel)
        ]
        self._dealing = Dealing(self.replicas, settings.batch_size)
        self._supervision = Supervision(ranks, topology, limits.hang_seconds)
        self._num_restarts, self._limits = 0, limits
        self._over: MindBatchError | None = None
        self._checks = checks
        self._topology = topology
        self._links, self._ranks, self._admission = links, ranks, admission
        self._notice, self._shown = notice, ""
        self._answers: dict[str, Callable[[int, Message], StepResult | None]] = {
            HELLO: self._greet,
            MODEL: self._compare,
            NOTICE: self._show,
            READY: self._take_ready,
            STEP: self._take_step,
            BEAT: self._take_beat,
            FAILED: self._take_failure,
        }

    @property
    def has_work(self) -> bool:
        return bool(self._dealing.num_waiting) or any(replica.dealt for replica in self.replicas)

    @property
    def statistics(self) -> EngineStatistics:
        """The sum of what the replicas have said last; what waits here waits too."""
        known = [replica.statistics for replica in self.replicas if replica.statistics is not None]
        past = [replica.past for replica in self.replicas if replica.past is not None]
        total = total_of([*(known or [self._checks.statistics]), *past])
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
        self._dealing.add(Asked.of(request))

    def step(self) -> StepResult:
        """What replicas have brought, waited for a moment.

        Raises:
            MindBatchError: a rank has ended, failed or hangs, and may not be started again.
        """
        if self._over is not None:
            raise self._over
        self._deal()
        result = StepResult([], [])
        arrival = self._links.next(WAIT_SECONDS)
        while arrival is not None:
            found = self._answer(arrival)
            if found is not None:
                result.events.extend(found.events)
                result.finished.extend(found.finished)
            arrival = self._links.next(0)
        for failure in self._supervision.check():
            result.finished.extend(self._recover(failure))
        self._deal()
        return result

    def abort(self, keys: Set[str] | None = None) -> None:
        """See `Engine.abort`."""
        self._dealing.drop(keys)
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
        for replica, asked in self._dealing.deal():
            fields, arrays = request_parts(asked.request)
            self._links.send(replica.leader, ADD, arrays, **fields)

    def _answer(self, arrival: Arrival) -> StepResult | None:
        rank, message = arrival
        if message is None:
            self._supervision.disconnected(rank)
            return None
        answer = self._answers.get(message.kind)
        if answer is None:
            raise MessageError(f"rank {rank} sent {message.kind!r}, which is not understood")
        return answer(rank, message)

    def _replica_of(self, rank: int) -> Replica:
        return self.replicas[self._topology.coordinates(rank).replica]

    def _greet(self, rank: int, message: Message) -> None:
        self._supervision.greet(rank, message.fields)
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
        events = [
            rest
            for event in found.events
            if event.key in replica.dealt
            and (rest := replica.dealt[event.key].shown.rest_of(event)) is not None
        ]
        finished = [
            _completed(output, replica.dealt.pop(output.key))
            for output in found.finished
            if output.key in replica.dealt
        ]
        return StepResult(events, finished)

    def _take_beat(self, rank: int, message: Message) -> None:
        self._supervision.beat(rank, message.fields)

    def _take_failure(self, rank: int, message: Message) -> StepResult:
        """A rank that fails while it loads would do so again; later, what it computed may be the cause."""
        error, replica = failure_of(message.fields), self._replica_of(rank)
        faults = (
            error.faults
            if type(error) is not MindBatchError
            else [f"rank {rank}: {each}" for each in error.faults]
        )
        if not replica.is_ready:
            self._over = type(error)(faults)
            return StepResult([], [])
        self._supervision.forget(replica.index)
        return StepResult([], self._recover(Failure(replica.index, faults[0], tuple(faults[1:]))))

    def _recover(self, failure: Failure) -> list[RequestOutput]:
        """Starts a replica anew, or ends the job at the next step; returns the requests that are to blame."""
        replica = self.replicas[failure.replica]
        blamed = self._dealing.take_back(replica, may_be_a_row=failure.may_be_a_row)
        if self._num_restarts >= self._limits.max_restarts:
            self._over = self._over or MindBatchError([failure.reason, *failure.details])
        else:
            self._num_restarts += 1
            count = f"{self._num_restarts} of at most {self._limits.max_restarts} times"
            say(f"{failure.reason}; its replica is started again, {count}", *failure.details)
            self._restart(replica)
        reason = f"it ended its process {MOST_DEATHS} times: {failure.reason}"
        return [asked.request.failure(PromptError(reason)) for asked in blamed]

    def _restart(self, replica: Replica) -> None:
        """From now on nothing is read of what the old processes may still send."""
        replica.begin_again()
        self._links.renew(replica.ranks, replica.attempt)
        try:
            self._ranks.restart(replica.index, replica.attempt)
        except MindBatchError as error:
            self._over = error
        self._supervision.begin(replica.index)


def _completed(output: RequestOutput, asked: Asked) -> RequestOutput:
    """An output as the engine of this process would have given it."""
    request, seconds = asked.request, time.perf_counter() - asked.started
    if output.error is not None:
        reason = output.error.removeprefix(f"{request.key}: ")
        return request.failure(PromptError(reason))
    return replace(
        output, prompt=request.prompt, prompt_token_ids=list(request.prompt_token_ids), seconds=seconds
    )
