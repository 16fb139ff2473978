"""Ranks of a job as threads of the test: real connections and engines, the shadow model, no processes."""

import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

from mindbatch.engine.engine import Engine
from mindbatch.engine.step import Runner, Step, StepOutput
from mindbatch.launch.job_ranks import EndedRank
from mindbatch.parallel.connection import connect
from mindbatch.parallel.topology import Topology
from mindbatch.prompts.tokenizer import Tokenizer
from mindbatch.replicas.messages import FAILED, MODEL, READY, failure_fields
from mindbatch.replicas.rank_links import CoordinatorLink, RankLinks, serve
from mindbatch.replicas.remote_engine import RemoteEngine
from shadow_llm import make_engine

KEY = os.urandom(32)
POISON = 13
"""A token that ends the rank which computes it."""


class ThreadsLink(CoordinatorLink):
    """The link of a rank that is a thread; it ends in silence, for no test may be running any more."""

    def _exit(self, error: Exception) -> None:
        self._ended.set()


class Rank:
    """The leader of a replica of one rank, in a thread.

    load: what is done before it is ready.
    """

    def __init__(
        self,
        links: RankLinks,
        rank: int,
        attempt: int,
        make_engine: Callable[[], Engine],
        load: Callable[[int], None],
        on_poison: Callable[[], None],
        before_step: Callable[[int], None],
    ) -> None:
        self.rank = rank
        self.on_poison, self.before_step = on_poison, before_step
        self.connection = connect(links.address, KEY)
        self._hello = {"rank": rank, "attempt": attempt, "host": "here", "versions": {}}
        self._make_engine, self._load = make_engine, load
        threading.Thread(target=self._run, daemon=True).start()

    def kill(self) -> None:
        """Ends it as a process ends."""
        self.connection.close()

    def _run(self) -> None:
        link = ThreadsLink(self.connection, self._hello)
        link.receive()
        link.send(MODEL, digests=[])
        try:
            self._load(self.rank)
            link.send(READY)
            engine = self._make_engine()
            engine._runner = _Killable(engine._runner, self)
            serve(link, engine)
        except _Ended:
            return
        except Exception as error:
            link.send(FAILED, **failure_fields(error))


class _Ended(BaseException):
    """A rank's thread is to end as if its process did."""


class _Killable:
    """A runner in whose steps its rank may end."""

    def __init__(self, runner: Runner, rank: Rank) -> None:
        self.vocab_size = runner.vocab_size
        self._runner, self._rank, self._steps = runner, rank, 0

    def run(self, step: Step) -> StepOutput:
        self._rank.before_step(self._steps)
        self._steps += 1
        output = self._runner.run(step)
        if any(POISON in tokens.group.request.prompt_token_ids for tokens in step.scheduled):
            self._rank.on_poison()
            self._rank.kill()
            raise _Ended
        return output


class ShadowRanks:
    """`JobRanks` of threads."""

    def __init__(
        self, links: RankLinks, count: int, make_engine: Callable[[], Engine], load: Callable[[int], None]
    ) -> None:
        self._start = lambda rank, attempt: Rank(
            links, rank, attempt, make_engine, load, lambda: self._note(rank), self._wait
        )
        self.started = count
        self._held_after, self._may_go_on = 0, threading.Event()
        self.go_on()
        self.ranks = {rank: self._start(rank, 0) for rank in range(count)}
        self.has_ended: list[EndedRank] = []

    def hold(self, steps: int) -> None:
        """Lets every attempt of a rank compute so many steps, and no more until `go_on`."""
        self._held_after = steps
        self._may_go_on.clear()

    def go_on(self) -> None:
        self._may_go_on.set()

    def _wait(self, steps: int) -> None:
        if steps >= self._held_after:
            self._may_go_on.wait()

    def kill(self, rank: int, number: int = 9) -> None:
        """Ends a rank as a signal would."""
        self.ranks[rank].kill()
        self._note(rank, number)

    def _note(self, rank: int, number: int = 9) -> None:
        self.has_ended.append(EndedRank(rank, f"signal {number}", ("a last line",)))

    def ended(self) -> list[EndedRank]:
        found, self.has_ended = self.has_ended, []
        return found

    def process_id(self, rank: int) -> int | None:
        return None

    def last_lines(self, rank: int) -> tuple[str, ...]:
        return (f"what {rank} said",)

    def restart(self, replica: int, attempt: int) -> None:
        self.started += 1
        self.ranks[replica].kill()
        self.ranks[replica] = self._start(replica, attempt)

    def end(self) -> None:
        for rank in self.ranks.values():
            rank.kill()


class AdmitsAll:
    """An admission that every rank passes."""

    def job(self, rank: int, hello: dict[str, Any]) -> dict[str, Any]:
        return {}

    def check_model(self, rank: int, model: dict[str, Any]) -> None:
        pass

    def forget(self, ranks: Iterable[int]) -> None:
        pass


def remote_engine(
    tokenizer: Tokenizer | None,
    replicas: int,
    notices: list[str] | None = None,
    load: Callable[[int], None] = lambda rank: None,
    max_restarts: int = 0,
) -> tuple[RemoteEngine, ShadowRanks]:
    """An engine over so many replicas, which may not be ready yet, and their ranks."""
    links = RankLinks("127.0.0.1", KEY, replicas)
    ranks = ShadowRanks(links, replicas, lambda: make_engine(tokenizer), load)
    seen: list[str] = [] if notices is None else notices
    checks = make_engine(tokenizer)
    engine = RemoteEngine(
        checks.settings,
        checks,
        Topology(replicas),
        links,
        ranks,
        AdmitsAll(),
        seen.append,
        max_restarts,
        warn=seen.append,
    )
    return engine, ranks
