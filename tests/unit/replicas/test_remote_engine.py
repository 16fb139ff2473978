"""An engine over replicas: the results of one engine, rows dealt evenly, ends that blame the right row."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from mindbatch.decoding import DecodingParams
from mindbatch.engine.request import Request, RequestOutput
from mindbatch.io.errors import ConfigError, MindBatchError, PromptError, RankError
from mindbatch.llm import LLM
from mindbatch.loading.build import LoadedEngine
from mindbatch.prompts.tokenizer import Tokenizer
from mindbatch.replicas.remote_engine import RemoteEngine
from shadow_llm import make_engine, make_llm
from shadow_ranks import POISON, ShadowRanks, remote_engine

PROMPTS = ["one", "two, three", "four five six", "", "seven"] * 3
WAYS: list[dict[str, Any]] = [
    {},
    {"do_sample": True, "temperature": 1.3, "seed": 3, "num_return_sequences": 2, "logprobs": 2},
    {"num_beams": 3, "num_return_sequences": 2, "stop": ["e"]},
    {"prompt_lookup_num_tokens": 3, "prompt_logprobs": 1},
    {"regex": "[ab]{3}"},
]


@pytest.fixture
def started(shadow_tokenizer: Tokenizer) -> Iterator[Callable[..., tuple[RemoteEngine, ShadowRanks]]]:
    engines: list[RemoteEngine] = []

    def start(replicas: int, **options: Any) -> tuple[RemoteEngine, ShadowRanks]:
        engine, ranks = remote_engine(shadow_tokenizer, replicas, **options)
        engines.append(engine)
        engine.wait_until_ready()
        return engine, ranks

    yield start
    for engine in engines:
        engine.close()


Start = Callable[..., tuple[RemoteEngine, ShadowRanks]]


def llm_over(engine: RemoteEngine, tokenizer: Tokenizer) -> LLM:
    return LLM.over(LoadedEngine(engine, tokenizer, 0))  # type: ignore[arg-type]


@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_results_are_those_of_one_engine(started: Start, shadow_tokenizer: Tokenizer, replicas: int) -> None:
    llm = llm_over(started(replicas)[0], shadow_tokenizer)
    one = make_llm(shadow_tokenizer)
    for given in WAYS:
        ours, theirs = (
            each.generate(PROMPTS, max_new_tokens=9, on_error="record", **given) for each in (llm, one)
        )
        for result in (*ours, *theirs):
            result.seconds = result.num_cached_tokens = 0
        assert ours == theirs, given
        assert [result.error is not None for result in ours] == [not prompt for prompt in PROMPTS]


def test_a_stream_is_that_of_one_engine(started: Start, shadow_tokenizer: Tokenizer) -> None:
    llm = llm_over(started(2)[0], shadow_tokenizer)
    events = sorted(llm.stream(["one", "two"], max_new_tokens=20), key=lambda event: event.key)
    assert events == sorted(
        make_llm(shadow_tokenizer).stream(["one", "two"], max_new_tokens=20), key=lambda event: event.key
    )


def request(key: str, prompt: tuple[int, ...] = (5, 6, 7), **params: Any) -> Request:
    return Request(key, prompt, DecodingParams(**{"max_new_tokens": 5, "eos_token_id": [], **params}))


def run(engine: Any, after_step: Callable[[], None] = lambda: None) -> dict[str, RequestOutput]:
    """Everything that comes; an output for each key once."""
    outputs: dict[str, RequestOutput] = {}
    while engine.has_work:
        for output in engine.step().finished:
            assert output.key not in outputs
            output.seconds = output.num_cached_tokens = 0
            outputs[output.key] = output
        after_step()
    return outputs


def test_what_is_refused_never_leaves_this_process(started: Start) -> None:
    engine, _ = started(1)
    for refused, reason in (
        (Request("a", (), request("a").params), "no tokens"),
        (request("b", prefix_allowed_tokens_fn=lambda key, tokens: [1]), "function"),
        (request("c", num_assistant_tokens=3), "assistant"),
        (request("d", logit_bias={9999: 1.0}), "outside the vocabulary"),
    ):
        with pytest.raises(PromptError, match=reason):
            engine.add(refused)
    assert not engine.has_work


def test_rows_are_dealt_evenly_and_no_more_than_there_is_room_for(started: Start) -> None:
    engine, _ = started(2)
    for number in range(40):
        engine.add(request(str(number), max_new_tokens=50))
    engine.step()
    counts = [replica.num_sequences for replica in engine.replicas]
    assert counts == [6, 6]  # a batch of 4, and 2 that wait for room in it
    assert engine.statistics.waiting_requests >= 28
    run(engine)
    assert engine.statistics.generated_tokens == 40 * 50


def test_all_that_a_replica_is_dealt_comes_at_once(started: Start) -> None:
    """Or its first step would have the requests that came in time, and graphs of its size be compiled."""
    engine, _ = started(2)
    for number in range(8):
        engine.add(request(str(number)))
    run(engine)
    assert engine.statistics.steps == 2 * 5  # the prompts of four requests are computed together


def test_what_was_dropped_is_not_brought_any_more(started: Start) -> None:
    engine, _ = started(2)
    for number in range(20):
        engine.add(request(str(number), max_new_tokens=60))
    engine.step()
    engine.abort({str(number) for number in range(20) if number != 7})
    seen = set()
    while engine.has_work:
        result = engine.step()
        seen |= {event.key for event in result.events} | {output.key for output in result.finished}
    assert seen == {"7"}
    engine.add(request("again"))
    engine.abort()
    assert not engine.has_work


def test_a_rank_that_has_ended_is_named_with_its_last_lines(started: Start) -> None:
    engine, ranks = started(2)
    for key in "ab":  # one for each
        engine.add(request(key, max_new_tokens=190))
    ranks.kill(1)
    with pytest.raises(MindBatchError) as caught:
        run(engine)
    assert caught.value.lines[:2] == ("rank 1 ended with signal 9", "rank 1: a last line")
    assert caught.value.lines[2].startswith("signal 9: killed, by the system where memory has run out; ")


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (ConfigError("device_target=Ascend: not here"), ConfigError, "^device_target=Ascend: not here$"),
        (RuntimeError("out of all"), MindBatchError, r"^rank 0: RuntimeError\('out of all'\)$"),
    ],
)
def test_what_a_rank_refuses_is_refused_and_another_error_names_it(
    shadow_tokenizer: Tokenizer, error: Exception, kind: type[Exception], message: str
) -> None:
    def load(rank: int) -> None:
        raise error

    engine, _ = remote_engine(shadow_tokenizer, 1, load=load)
    with pytest.raises(kind, match=message):
        engine.wait_until_ready()
    engine.close()


@pytest.mark.slow
def test_requests_of_an_ended_replica_are_computed_again(started: Start, shadow_tokenizer: Tokenizer) -> None:
    """What was streamed before is not streamed again."""
    notices: list[str] = []
    engine, ranks = started(2, max_restarts=3, notices=notices)
    ranks.hold(40)  # so that no row is finished before both are killed
    llm = llm_over(engine, shadow_tokenizer)
    given: dict[str, Any] = {"max_new_tokens": 60, "eos_token_id": [], "num_return_sequences": 2}
    given |= {"do_sample": True, "seed": 5, "logprobs": 1}
    events = []
    for number, event in enumerate(llm.stream(PROMPTS[:3] * 2, **given)):
        events.append(event)
        if number in (50, 200):
            ranks.kill(number // 200)
        if number == 200:
            ranks.go_on()
    for result in make_llm(shadow_tokenizer).generate(PROMPTS[:3] * 2, **given):
        for output in result.outputs:
            mine = [event for event in events if (event.key, event.index) == (result.key, output.index)]
            assert [token for event in mine for token in event.token_ids] == output.token_ids
            assert "".join(event.text for event in mine) == output.text
            assert [entry for event in mine for entry in event.logprobs or ()] == output.logprobs
            assert mine[-1].finish_reason == output.finish_reason
    assert [line for line in notices if line] == [
        "rank 0 ended with signal 9; started again (1 of 3 times)",
        "rank 0: a last line",
        "rank 1 ended with signal 9; started again (2 of 3 times)",
        "rank 1: a last line",
    ]
    assert ranks.started == 4


def test_a_request_that_ends_two_processes_fails_alone(started: Start) -> None:
    engine, ranks = started(1, max_restarts=4, notices=[])
    for number in range(12):
        engine.add(request(str(number)))
    engine.add(replace(request("bad", (1, POISON)), source="rows.jsonl:7"))
    for number in range(12, 24):
        engine.add(request(str(number)))
    results = run(engine)
    assert len(results) == 25
    assert results.pop("bad").error == (
        "rows.jsonl:7: the process that computed it ended 2 times, the last time: rank 0 ended with signal 9"
    )
    assert not [result for result in results.values() if result.error]
    assert ranks.started == 3
    assert engine.statistics.generated_tokens >= 24 * 5


def alone(tokenizer: Tokenizer, *requests: Request) -> dict[str, RequestOutput]:
    """What one engine makes of the requests."""
    engine = make_engine(tokenizer)
    for each in requests:
        engine.add(each)
    return run(engine)


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_what_an_operator_ends_blames_no_row_however_often(
    started: Start, shadow_tokenizer: Tokenizer, replicas: int
) -> None:
    engine, ranks = started(replicas, max_restarts=3, notices=[])
    requests = [request("0", (5, 6, 20), max_new_tokens=40)]
    engine.add(requests[0])
    kills, killed = 0, engine.replicas[-1]

    def kill() -> None:
        nonlocal kills
        if killed.attempt < 3 and engine.statistics.waiting_requests < 8:  # the other one must not do all
            requests.append(request(str(len(requests)), (5, 6, len(requests) % 40 + 20), max_new_tokens=40))
            engine.add(requests[-1])
        if killed.attempt == kills < 3 and killed.in_flight and killed.statistics is not None:
            ranks.kill(replicas - 1, number=15)
            kills += 1

    assert run(engine, kill) == alone(shadow_tokenizer, *requests)
    assert killed.attempt == 3
    assert engine.statistics.generated_tokens >= len(requests) * 40


@pytest.mark.slow
def test_a_connection_that_ends_blames_no_row(started: Start, shadow_tokenizer: Tokenizer) -> None:
    engine, ranks = started(1, max_restarts=2, notices=[])
    engine.add(request("1", (5, 6, 21), max_new_tokens=150))
    for attempt in (0, 1):
        while engine.replicas[0].statistics is None:
            engine.step()
        ranks.ranks[0].kill()  # and nobody says that the process has ended
        while engine.replicas[0].attempt == attempt:
            engine.step()
    assert run(engine) == alone(shadow_tokenizer, request("1", (5, 6, 21), max_new_tokens=150))


def test_what_was_finished_is_brought_before_the_error(started: Start) -> None:
    engine, ranks = started(1, max_restarts=1, notices=[])
    for number in range(30):
        engine.add(request(str(number), (5, 6, number + 20), max_new_tokens=12))
    ranks.kill(0)
    finished = 0
    while finished < 5:
        finished += len(engine.step().finished)
    ranks.kill(0)
    with pytest.raises(RankError, match="^rank 0 ended with signal 9\nrank 0: a last line\nsignal 9: "):
        run(engine)
    assert engine.has_work
    assert ranks.started == 2


def test_the_last_row_of_all_may_be_the_one_to_blame(started: Start) -> None:
    """Then nothing is left to be done, and there is no error of the job until there is."""
    engine, _ = started(1, max_restarts=1, notices=[])
    engine.add(request("99", (POISON,)))
    assert "ended 2 times" in (run(engine)["99"].error or "")
    engine.add(request("1"))
    with pytest.raises(RankError, match="rank 0 ended with signal 9"):
        run(engine)
