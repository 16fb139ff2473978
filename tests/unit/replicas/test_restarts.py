"""Replicas that die and are started again: the same results, and an error for the row that ends them."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mindbatch.decoding import DecodingParams
from mindbatch.engine.request import Request, RequestOutput, StreamEvent
from mindbatch.engine.scheduler import Step
from mindbatch.errors import MindBatchError
from mindbatch.replicas.remote_engine import RemoteEngine
from mindbatch.replicas.supervision import FailureLimits
from shadow_llm import PrefixLogits, PrefixRunner
from shadow_ranks import ShadowRanks, make_engine, remote_engine

# A shadow rank ends its threads where a process would end.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

POISON = 9


class Poisoned(PrefixRunner):
    """Fails in every step that computes the poisonous token."""

    def run(self, step: Step) -> PrefixLogits:
        output = super().run(step)
        if any(POISON in prefix for prefix in output.prefixes):
            raise RuntimeError("poisoned")
        return output


def request(key: str, *prompt: int, **params: Any) -> Request:
    given = {"max_new_tokens": 12, "eos_token_id": [], "bad_words_ids": [[POISON]], **params}
    return Request(key, prompt or (5, 6, int(key) + 20), DecodingParams(**given))


@pytest.fixture
def start() -> Iterator[Callable[..., tuple[RemoteEngine, ShadowRanks]]]:
    engines: list[RemoteEngine] = []

    def started(replicas: int, max_restarts: int, **options: Any) -> tuple[RemoteEngine, ShadowRanks]:
        engine, ranks = remote_engine(
            None, replicas, limits=FailureLimits(max_restarts=max_restarts), **options
        )
        engines.append(engine)
        engine.wait_until_ready()
        return engine, ranks

    yield started
    for engine in engines:
        engine.close()


Start = Callable[..., tuple[RemoteEngine, ShadowRanks]]


def run(
    engine: Any, after_step: Callable[[int], None] = lambda step: None
) -> tuple[dict[str, RequestOutput], list[StreamEvent]]:
    """Everything that comes; an output for each key once."""
    found: dict[str, RequestOutput] = {}
    events = []
    step = 0
    while engine.has_work:
        result = engine.step()
        events += result.events
        for output in result.finished:
            assert output.key not in found
            output.seconds = output.num_cached_tokens = 0
            found[output.key] = output
        after_step(step)
        step += 1
    return found, events


def alone(*requests: Request) -> tuple[dict[str, RequestOutput], list[StreamEvent]]:
    """What one engine makes of the requests."""
    engine = make_engine(None)
    for each in requests:
        engine.add(each)
    return run(engine)


def tokens_of(events: list[StreamEvent]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for event in events:
        found.setdefault(event.key, []).extend(event.token_ids)
    return found


@pytest.mark.parametrize("replicas", [1, 2])
def test_results_and_events_are_those_of_an_unbroken_run(
    start: Start, replicas: int, capsys: pytest.CaptureFixture[str]
) -> None:
    engine, ranks = start(replicas, 3)
    requests = [request(str(number), max_new_tokens=40) for number in range(30)]
    for each in requests:
        engine.add(each)
    kills, killed = 0, engine.replicas[-1]

    def kill(step: int) -> None:
        nonlocal kills
        if killed.attempt == kills < 3 and killed.dealt and killed.statistics is not None:
            ranks.kill(replicas - 1, number=15)
            kills += 1

    found, events = run(engine, kill)
    expected, unbroken = alone(*requests)
    assert killed.attempt == 3
    assert found == expected
    assert tokens_of(events) == tokens_of(unbroken)
    assert engine.statistics.generated_tokens >= 30 * 40
    said = capsys.readouterr().err
    assert f"rank {replicas - 1} ended with signal 15; its replica is started again, 3 of at most 3" in said


def test_a_death_too_many_ends_the_job_and_keeps_what_was_finished(start: Start) -> None:
    engine, ranks = start(1, 1)
    for number in range(30):
        engine.add(request(str(number)))
    ranks.kill(0)
    finished = 0
    while finished < 5:
        finished += len(engine.step().finished)
    ranks.kill(0)
    with pytest.raises(MindBatchError, match="rank 0 ended with signal 9"):
        run(engine)
    assert engine.has_work


def test_a_row_that_ends_its_process_twice_fails_alone(start: Start) -> None:
    engine, _ = start(2, 2, runner=Poisoned())
    requests = [request(str(number)) for number in range(20)]
    for each in requests[:10]:
        engine.add(each)
    engine.add(request("99", 5, POISON))
    for each in requests[10:]:
        engine.add(each)
    found, _ = run(engine)
    poisoned = found.pop("99")
    assert found == alone(*requests)[0]
    assert poisoned.error is not None
    assert poisoned.error.startswith("99: it ended its process 2 times: rank ")
    assert "RuntimeError('poisoned')" in poisoned.error


def test_the_last_row_of_all_may_be_the_poisonous_one(start: Start) -> None:
    """Then nothing is left to be done, and no error of the job."""
    engine, _ = start(1, 1, runner=Poisoned())
    engine.add(request("99", POISON))
    found, _ = run(engine)
    assert "2 times" in (found["99"].error or "")
    engine.add(request("1"))
    with pytest.raises(MindBatchError, match="poisoned"):
        run(engine)


def test_a_connection_that_ends_blames_no_row(start: Start) -> None:
    engine, ranks = start(1, 3)
    engine.add(request("1", max_new_tokens=150))
    for _ in range(3):
        engine.step()
        ranks.ranks[0].kill()  # and nobody says that the process has ended
        while engine.replicas[0].is_ready:
            engine.step()
        while not engine.replicas[0].is_ready:
            engine.step()
    found, _ = run(engine)
    assert found == alone(request("1", max_new_tokens=150))[0]


def test_without_restarts_the_first_failure_ends_the_job(start: Start) -> None:
    engine, _ = start(1, 0, runner=Poisoned())
    engine.add(request("99", POISON))
    engine.add(request("1"))
    with pytest.raises(MindBatchError, match="^rank 0: RuntimeError"):
        run(engine)
