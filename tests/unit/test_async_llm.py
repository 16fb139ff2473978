"""AsyncLLM: the tasks of an event loop share one batch, and what becomes of one is its own affair."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import Mock

import pytest

from mindbatch import AsyncLLM, ConfigError, DecodingParams, MindBatchError, PromptError
from mindbatch.llm import LLM
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
