"""Calls of tasks and threads share one batch, each as if alone, none hurt by what becomes of another."""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from harness.forks import run_forked
from mindbatch import AsyncLLM, ConfigError, DecodingParams, MindBatchError, PromptError
from mindbatch.engine.calls import FairLock, refuse_forked
from mindbatch.engine.request import Request
from mindbatch.llm import LLM
from mindbatch.prompts.prompts import Prompt
from shadow_llm import greedy_tokens, make_llm

LONG = DecodingParams(max_new_tokens=40, eos_token_id=())
SAMPLED = DecodingParams(do_sample=True, max_new_tokens=12, seed=5, eos_token_id=())
FEW: dict[str, Any] = {"max_new_tokens": 12, "eos_token_id": ()}


class Paced:
    """A shadow model that computes a step for each permit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, permits: int) -> None:
        self.llm = make_llm(None)
        self.permits = threading.Semaphore(permits)
        run = self.llm._model.engine._runner.run

        def paced(step: Any) -> Any:
            assert self.permits.acquire(timeout=60)
            return run(step)

        monkeypatch.setattr(self.llm._model.engine._runner, "run", paced)


def play(llm: LLM, scene: Callable[[AsyncLLM], Awaitable[Any]]) -> Any:
    async def whole() -> Any:
        async with AsyncLLM.over(llm) as opened:
            return await scene(opened)

    return asyncio.run(whole())


def test_tasks_share_steps_and_get_what_they_would_get_alone() -> None:
    calls = [[[30 + i, 40], [50, 60 + i, 7]] for i in range(12)]
    alone = make_llm(None)
    expected = [[result.outputs[0].token_ids for result in alone.generate(each, SAMPLED)] for each in calls]
    llm = make_llm(None)

    async def generated(opened: AsyncLLM, prompts: Any) -> list[list[int]]:
        results = await opened.generate(prompts, SAMPLED)
        return [result.outputs[0].token_ids for result in results]

    async def streamed(opened: AsyncLLM, prompts: Any) -> list[list[int]]:
        tokens: list[list[int]] = [[], []]
        async for event in opened.stream(prompts, {"do_sample": True, "seed": 5}, **FEW):
            tokens[int(event.key)] += event.token_ids
        return tokens

    async def scene(opened: AsyncLLM) -> Any:
        ways = [generated, streamed] * 6
        found = await asyncio.gather(*(way(opened, each) for way, each in zip(ways, calls, strict=True)))
        return found, llm.statistics.steps

    found, steps = play(llm, scene)
    assert found == expected
    assert steps < alone.statistics.steps


def test_the_end_of_one_task_is_not_that_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    paced = Paced(monkeypatch, permits=1)

    async def first_event(opened: AsyncLLM, begun: asyncio.Event) -> None:
        async for _ in opened.stream([[30], [31]], LONG):
            begun.set()

    async def scene(opened: AsyncLLM) -> list[int]:
        begun = asyncio.Event()
        cancelled = asyncio.create_task(first_event(opened, begun))
        await begun.wait()
        going_on = asyncio.create_task(opened.generate([[32]], LONG))
        with pytest.raises(PromptError, match="outside the vocabulary"):
            await refused(opened)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        paced.permits.release(100)
        (result,) = await going_on
        return result.outputs[0].token_ids

    async def refused(opened: AsyncLLM) -> None:
        paced.permits.release()  # it is asked between two steps
        await opened.generate([[10**6]])

    assert play(paced.llm, scene) == greedy_tokens([32], 40)
    assert paced.permits.acquire(blocking=False), "the cancelled task's requests went on"


def test_closing_ends_what_runs_and_refuses_what_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    paced = Paced(monkeypatch, permits=1)

    async def scene(opened: AsyncLLM) -> None:
        events = opened.stream([[30]], LONG)
        await anext(events)
        closing = asyncio.create_task(opened.close())
        await asyncio.sleep(0)
        paced.permits.release(2)
        await closing
        for running in (events, opened.stream([[31]])):
            with pytest.raises(MindBatchError, match="^this LLM was closed$"):
                async for _ in running:
                    pass

    play(paced.llm, scene)


def test_loading_blocks_nobody_and_its_failure_reaches_every_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    loading = threading.Event()

    def load(path: str, **options: Any) -> LLM:
        assert loading.wait(60)
        raise ConfigError("no such folder")

    monkeypatch.setattr("mindbatch.async_llm.LLM", load)

    async def scene() -> None:
        llm = AsyncLLM("nowhere")
        waiting = asyncio.gather(llm.generate("a"), llm.generate("b"), return_exceptions=True)
        await asyncio.sleep(0)
        loading.set()
        assert [str(error) for error in await waiting] == ["no such folder"] * 2
        with pytest.raises(ConfigError):
            await AsyncLLM.load("nowhere")

    asyncio.run(scene())


def test_what_is_asked_while_it_is_closed_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """By an error, at once or later: another thread asks, and has seen that it is open, when it is closed."""
    opened = AsyncLLM.over(make_llm(None))
    assert opened.ask(lambda llm: 1).result(60) == 1
    thread, answers = opened._thread, []
    closing = threading.Thread(target=lambda: asyncio.run(opened.close()))

    class ClosedMeanwhile:
        """The thread, whose owner is closed as soon as it is looked at."""

        @property
        def ident(self) -> int | None:
            if closing.ident is None:
                closing.start()
                closing.join(0.2)  # as far as it comes
            return thread.ident

    monkeypatch.setattr(opened, "_thread", ClosedMeanwhile())
    answers.append(opened.ask(lambda llm: 2))
    closing.join(60)
    assert answers[0].result(10) == 2
    with pytest.raises(MindBatchError, match="^this LLM was closed$"):
        opened.ask(lambda llm: 3)


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit, KeyboardInterrupt])
def test_a_step_that_fails_reaches_its_callers_and_the_engine_goes_on(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """Even where it would end its thread."""
    llm = make_llm(None)

    async def scene(opened: AsyncLLM) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(llm._model.engine._runner, "run", Mock(side_effect=error))
            with pytest.raises(MindBatchError, match=f"a step of the engine failed: {error.__name__}"):
                await opened.generate([[30]], LONG)
        (result,) = await asyncio.wait_for(opened.generate([[30]], LONG), 60)
        assert result.outputs[0].token_ids == greedy_tokens([30], 40)

    play(llm, scene)


TWO_SAMPLES = DecodingParams(
    do_sample=True, num_return_sequences=2, max_new_tokens=12, seed=5, eos_token_id=()
)
THREADS = 8


def tokens_of(
    llm: LLM, prompts: list[list[int]], params: DecodingParams = TWO_SAMPLES
) -> list[list[list[int]]]:
    return [[output.token_ids for output in result.outputs] for result in llm.generate(prompts, params)]


def streamed(llm: LLM, prompts: list[list[int]]) -> list[list[list[int]]]:
    tokens: list[list[list[int]]] = [[[], []] for _ in prompts]
    for event in llm.stream(prompts, TWO_SAMPLES):
        tokens[int(event.key)][event.index] += event.token_ids
    return tokens


def gathered(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Makes the first step wait until a call of each thread is there; gives the most requests at once."""
    engine, everybody, most = llm._model.engine, threading.Barrier(THREADS), []
    step, add = engine.step, llm.calls.add

    def counted() -> Any:
        most.append(len(engine.scheduler.running) + len(engine.scheduler.waiting))
        return step()

    def added(*given: Any, **options: Any) -> Any:
        refused = add(*given, **options)
        everybody.wait(60)
        return refused

    monkeypatch.setattr(engine, "step", counted)
    monkeypatch.setattr(llm.calls, "add", added)
    return lambda: max(most)


@pytest.mark.slow
def test_threads_get_what_they_would_get_alone_from_shared_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = make_llm(None)
    calls = [[[30 + i, 40], [50, 60 + i, 7], [9]][: 1 + i % 3] for i in range(3 * THREADS)]
    alone = [tokens_of(llm, prompts) for prompts in calls]
    steps = llm.statistics.steps
    most = gathered(llm, monkeypatch)
    with ThreadPoolExecutor(THREADS) as pool:
        one_way = [streamed if i % 2 else tokens_of for i in range(len(calls))]
        assert list(pool.map(lambda call, prompts: call(llm, prompts), one_way, calls)) == alone
    assert most() >= THREADS
    assert llm.statistics.steps - steps < steps, "the calls were served one after the other"


def test_an_end_of_one_call_leaves_the_others_alone() -> None:
    llm = make_llm(None)
    left = llm.stream([[30, 40], [50]], TWO_SAMPLES)
    failing = llm.stream([[31]], TWO_SAMPLES)
    going_on = llm.stream([[32]], DecodingParams(max_new_tokens=9, eos_token_id=()))
    next(left), next(failing)
    with pytest.raises(PromptError, match="outside the vocabulary"):
        llm.generate([[10**6]])
    with suppress(ZeroDivisionError):
        raise ZeroDivisionError(next(failing))
    del left, failing
    tokens = [token for event in going_on for token in event.token_ids]
    assert tokens == greedy_tokens([32], 9)
    assert not llm._model.engine.has_work


def test_calls_in_the_background_make_way_and_give_the_same() -> None:
    """Of four places the rows that began first keep those that are left; what waits goes behind who comes."""
    llm, long = make_llm(None), DecodingParams(max_new_tokens=30, eos_token_id=())
    background = llm.call(in_background=True)
    prompts = {
        str(number): Prompt(key=str(number), source="", token_ids=[30 + number]) for number in range(6)
    }
    background.add(llm.request(prompt, long) for prompt in prompts.values())
    for _ in range(3):
        background.next()
    foreground = llm.submit([(replace(prompts["0"], key="a", token_ids=[90]), TWO_SAMPLES)])  # two sequences
    assert [llm.statistics.running_sequences, llm.statistics.waiting_requests] == [2, 1 + 4]
    assert [owner.request.key for owner in llm.calls._owners.values() if owner.has_begun] == ["0", "1"]
    done: list[str] = []
    while background.num_unfinished or foreground.num_unfinished:
        if foreground.num_unfinished:
            done += ["a" for _ in foreground.next().finished]
        for output in background.next().finished if background.num_unfinished else ():
            done.append(output.key)
            assert output.outputs[0].token_ids == greedy_tokens([30 + int(output.key)], 30)
    assert done[0] == "a", "rows that had not begun went before it"
    assert {*done[1:3]} == {"0", "1"}
    assert not llm.calls._owners


def test_what_has_made_way_and_is_refused_then_ends_with_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """And whoever it made way for knows nothing of it."""
    llm = make_llm(None)
    background = llm.call(in_background=True)
    background.add([llm.request(Prompt(key="b", source="", token_ids=[30]), DecodingParams())])
    add, error = llm._model.engine.add, PromptError("the grammar's process has ended")

    def refusing(request: Request) -> None:
        if request.row_key == "b":
            raise error
        add(request)

    monkeypatch.setattr(llm._model.engine, "add", refusing)
    assert tokens_of(llm, [[31]]) == tokens_of(make_llm(None), [[31]])
    (output,) = background.next().finished
    assert (output.key, output.error) == ("b", "b: the grammar's process has ended")
    assert background.num_unfinished == 0


def test_what_has_made_way_goes_on_where_the_others_could_not_be_queued(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    llm = make_llm(None)
    background = llm.call(in_background=True)
    background.add(
        [llm.request(Prompt(key="b", source="", token_ids=[30]), DecodingParams(max_new_tokens=1))]
    )
    add = llm._model.engine.add

    def failing(request: Request) -> None:
        if request.row_key != "b":
            raise MindBatchError("a rank has ended")
        add(request)

    monkeypatch.setattr(llm._model.engine, "add", failing)
    with pytest.raises(MindBatchError, match="a rank has ended"):
        llm.generate([[31]])
    (output,) = background.next().finished
    assert output.outputs[0].token_ids == greedy_tokens([30], 1)


def test_a_step_that_fails_ends_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = make_llm(None)
    first, second = llm.stream([[30]], TWO_SAMPLES), llm.stream([[31]], TWO_SAMPLES)
    next(first)
    with monkeypatch.context() as patched:
        patched.setattr(llm._model.engine._runner, "run", lambda step: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            list(second)
    with pytest.raises(MindBatchError, match="^generation ended: a step of the engine failed: ZeroDivision"):
        list(first)
    assert tokens_of(llm, [[30]]) == tokens_of(make_llm(None), [[30]])


def test_a_function_that_the_engine_calls_may_not_call_the_model() -> None:
    llm = make_llm(None)

    def allowed(key: str, tokens: Any) -> list[int]:
        return llm.generate([[30]])[0].prompt_token_ids

    params = DecodingParams(max_new_tokens=2, prefix_allowed_tokens_fn=allowed)
    with pytest.raises(MindBatchError, match="may not call a model"):
        llm.generate([[31]], params)


def test_the_lock_goes_to_those_who_wait() -> None:
    lock, order, asked = FairLock(), [], threading.Event()

    def other() -> None:
        asked.set()
        with lock:
            order.append("other")

    with lock:
        thread = threading.Thread(target=other)
        thread.start()
        asked.wait(60)
        while not lock._next.locked():
            pass
    with lock:
        order.append("first")
    thread.join(60)
    assert order == ["other", "first"]


def test_a_forked_child_is_refused() -> None:
    llm = make_llm(None)

    def session(send: Callable[[str], None]) -> None:
        for use in (lambda: llm.generate([[30]]), lambda: next(llm.stream([[30]])), lambda: refuse_forked(1)):
            with pytest.raises(MindBatchError) as caught:
                use()
            send(str(caught.value))

    parent = os.getpid()
    ending = run_forked(session)
    assert ending.code == 0
    assert ending.lines[0].startswith(f"a model was loaded in process {parent} and cannot run in process")
    assert ending.lines[0].endswith('(multiprocessing: the "spawn" start method)')
    assert len(set(ending.lines[:2])) == 1
    assert len(ending.lines) == 3
