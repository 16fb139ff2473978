"""What ends a job of several replicas, what is kept then, and what blames no row."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mindbatch.decoding import DecodingParams
from mindbatch.engine.request import Request, RequestOutput
from mindbatch.io.errors import RankError
from mindbatch.replicas.remote_engine import RemoteEngine
from shadow_ranks import POISON, ShadowRanks, make_engine, remote_engine

Start = Callable[..., tuple[RemoteEngine, ShadowRanks]]


def request(key: str, *prompt: int, **params: Any) -> Request:
    given = {"max_new_tokens": 12, "eos_token_id": [], **params}
    return Request(key, prompt or (5, 6, int(key) + 20), DecodingParams(**given))


@pytest.fixture
def start() -> Iterator[Start]:
    engines: list[RemoteEngine] = []

    def started(replicas: int, max_restarts: int) -> tuple[RemoteEngine, ShadowRanks]:
        engine, ranks = remote_engine(None, replicas, max_restarts=max_restarts)
        engines.append(engine)
        engine.wait_until_ready()
        return engine, ranks

    yield started
    for engine in engines:
        engine.close()


def run(engine: Any, after_step: Callable[[], None] = lambda: None) -> dict[str, RequestOutput]:
    """Everything that comes; an output for each key once."""
    found: dict[str, RequestOutput] = {}
    while engine.has_work:
        for output in engine.step().finished:
            assert output.key not in found
            output.seconds = output.num_cached_tokens = 0
            found[output.key] = output
        after_step()
    return found


def alone(*requests: Request) -> dict[str, RequestOutput]:
    """What one engine makes of the requests."""
    engine = make_engine(None)
    for each in requests:
        engine.add(each)
    return run(engine)


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_what_an_operator_ends_blames_no_row_however_often(start: Start, replicas: int) -> None:
    engine, ranks = start(replicas, 3)
    requests = [request("0", max_new_tokens=40)]
    engine.add(requests[0])
    kills, killed = 0, engine.replicas[-1]

    def kill() -> None:
        nonlocal kills
        if killed.attempt < 3 and engine.statistics.waiting_requests < 8:  # the other one must not do all
            requests.append(request(str(len(requests)), 5, 6, len(requests) % 40 + 20, max_new_tokens=40))
            engine.add(requests[-1])
        if killed.attempt == kills < 3 and killed.dealt and killed.statistics is not None:
            ranks.kill(replicas - 1, number=15)
            kills += 1

    assert run(engine, kill) == alone(*requests)
    assert killed.attempt == 3
    assert engine.statistics.generated_tokens >= len(requests) * 40


@pytest.mark.slow
def test_a_connection_that_ends_blames_no_row(start: Start) -> None:
    engine, ranks = start(1, 2)
    engine.add(request("1", max_new_tokens=150))
    for attempt in (0, 1):
        while engine.replicas[0].statistics is None:
            engine.step()
        ranks.ranks[0].kill()  # and nobody says that the process has ended
        while engine.replicas[0].attempt == attempt:
            engine.step()
    assert run(engine) == alone(request("1", max_new_tokens=150))


def test_what_was_finished_is_brought_before_the_error(start: Start) -> None:
    engine, ranks = start(1, 1)
    for number in range(30):
        engine.add(request(str(number)))
    ranks.kill(0)
    finished = 0
    while finished < 5:
        finished += len(engine.step().finished)
    ranks.kill(0)
    with pytest.raises(RankError, match="^rank 0 ended with signal 9\nrank 0: a last line\nsignal 9: "):
        run(engine)
    assert engine.has_work


def test_the_last_row_of_all_may_be_the_one_to_blame(start: Start) -> None:
    """Then nothing is left to be done, and there is no error of the job until there is."""
    engine, _ = start(1, 1)
    engine.add(request("99", POISON))
    assert "ended 2 times" in (run(engine)["99"].error or "")
    engine.add(request("1"))
    with pytest.raises(RankError, match="rank 0 ended with signal 9"):
        run(engine)
