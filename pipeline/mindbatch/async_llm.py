"""AsyncLLM: an LLM for asyncio, whose engine runs in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Future
from contextlib import ExitStack, aclosing, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from mindbatch.engine.call_inputs import Params, Prompts, check_on_error
from mindbatch.engine.calls import Inbox, Run
from mindbatch.engine.request import Request, RequestOutput, StreamEvent, in_order, refuse_failed
from mindbatch.io.errors import MindBatchError
from mindbatch.io.interrupts import sigterm_as_sigint
from mindbatch.llm import CLOSED, LLM

if TYPE_CHECKING:
    from mindbatch.decoding import DecodingParams
    from mindbatch.prompts.prompts import Prompt

Result = TypeVar("Result")
_ROWS_AT_ONCE = 8
_MANY_REFUSED = 20
_ITEMS_AT_ONCE = 8
LLMCommands = SimpleQueue[Callable[[LLM | BaseException], None] | None]


class AsyncLLM:
    """Generates text for the tasks of an event loop, without blocking it.

    One thread loads the model and computes; the requests of all callers are in one continuous batch. A task
    that is cancelled or abandons its stream drops its own requests. `load`, `async with` or the first call
    loads the model; the arguments are those of LLM.
    """

    def __init__(self, path: str | Path | None = None, **options: Any) -> None:
        self._begin(partial(LLM, path, **options))

    @classmethod
    async def load(cls, path: str | Path | None = None, **options: Any) -> AsyncLLM:
        """Returns an AsyncLLM with its model loaded; raises the errors of LLM."""
        return await cls(path, **options).__aenter__()

    @classmethod
    def over(cls, llm: LLM) -> AsyncLLM:
        """Returns an AsyncLLM over a loaded LLM, which it closes with itself."""
        async_llm = object.__new__(cls)
        async_llm._begin(lambda: llm)
        return async_llm

    def _begin(self, load: Callable[[], LLM]) -> None:
        self._commands: LLMCommands = SimpleQueue()
        # Held while a command is put: none may come after the None that ends the thread.
        self._putting = threading.Lock()
        self._signals = ExitStack()
        self._thread = threading.Thread(target=_serve, args=(load, self._commands), daemon=True)
        # Also at the interpreter's end, which must not come while MindSpore computes.
        self._stop = weakref.finalize(self, _stop, self._thread, self._commands, self._putting)

    async def __aenter__(self) -> AsyncLLM:
        await self._ask(lambda llm: None)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @property
    def is_closed(self) -> bool:
        return not self._stop.alive

    async def close(self) -> None:
        """Ends the thread and closes the LLM; running calls raise MindBatchError."""
        try:
            await asyncio.to_thread(self._stop)
        finally:
            self._signals.close()

    async def generate(
        self,
        prompts: Prompts,
        params: Params = None,
        *,
        on_error: Literal["raise", "record"] = "raise",
        **options: Any,
    ) -> list[RequestOutput]:
        """Generates as `LLM.generate`; there is no streamer."""
        check_on_error(on_error)
        run = await self._run(prompts, params, options)
        results = list(run.refused)
        if on_error == "raise":
            refuse_failed(results)
        async with aclosing(run) as items:
            results += [item async for item in items if isinstance(item, RequestOutput)]
        return in_order(results, on_error)

    async def stream(
        self, prompts: Prompts, params: Params = None, **options: Any
    ) -> AsyncIterator[StreamEvent]:
        """Streams as `LLM.stream`; errors are raised by the first step of the iteration."""
        run = await self._run(prompts, params, options)
        refuse_failed(run.refused)
        async with aclosing(run) as items:
            async for item in items:
                if isinstance(item, StreamEvent):
                    yield item
                else:
                    refuse_failed([item])

    async def submit(
        self,
        rows: Iterable[tuple[Prompt, DecodingParams]],
        *,
        with_events: bool = True,
        max_waiting: int | None = None,
    ) -> AsyncRun:
        """Queues rows as `LLM.submit`, a few at a time, so that steps for other callers run in between.

        It stops after many refused rows. Prompts are encoded outside the engine's thread.

        with_events: False delivers finished results only, so that steps do not wake the loop.
        max_waiting: see `Inbox`.
        """
        filled, source = asyncio.Event(), iter(rows)
        inbox = _inbox(filled, with_events=with_events, max_waiting=max_waiting)
        llm, run = await self._ask(lambda llm: (llm, llm.submit((), inbox)))
        try:
            while len(run.refused) < _MANY_REFUSED and (some := [*islice(source, _ROWS_AT_ONCE)]):
                requests = await asyncio.to_thread(_requests, llm, some)
                await self._ask(lambda llm, requests=requests: run.add(requests))  # type: ignore[misc]
        except BaseException:
            run.close()
            raise
        return AsyncRun(run, inbox, filled)

    async def _run(self, prompts: Prompts, params: Params, options: dict[str, Any]) -> AsyncRun:
        inbox = _inbox(filled := asyncio.Event())
        run = await self._ask(lambda llm: llm.begin(prompts, params, inbox, **options))
        return AsyncRun(run, inbox, filled)

    async def _ask(self, function: Callable[[LLM], Result]) -> Result:
        return await asyncio.wrap_future(self.ask(function))

    def ask(self, function: Callable[[LLM], Result]) -> Future[Result]:
        """Calls a function on the LLM in the engine's thread between two steps; any thread may call this.

        Raises:
            MindBatchError: it was closed.
        """
        answer: Future[Result] = Future()
        with self._putting:
            if not self._stop.alive:
                raise MindBatchError(CLOSED)
            if self._thread.ident is None:
                self._signals.enter_context(sigterm_as_sigint())
                self._thread.start()
            self._commands.put(partial(_answer, function, answer))
        return answer


def _requests(llm: LLM, rows: list[tuple[Prompt, DecodingParams]]) -> list[Request | RequestOutput]:
    return [llm.request(*row) for row in rows]


def _inbox(filled: asyncio.Event, *, with_events: bool = True, max_waiting: int | None = None) -> Inbox:
    """Returns an inbox that sets the event of the loop from any thread."""
    loop = asyncio.get_running_loop()

    def wake() -> None:
        with suppress(RuntimeError):  # the loop was closed, and its tasks with it
            loop.call_soon_threadsafe(filled.set)

    return Inbox(wake, with_events=with_events, max_waiting=max_waiting)


class AsyncRun:
    """A run that awaits its results, which the engine's thread computes; `aclose` drops unfinished rows."""

    def __init__(self, run: Run, inbox: Inbox, filled: asyncio.Event) -> None:
        self.refused, self.requests = run.refused, run.requests
        self._run, self._inbox, self._filled = run, inbox, filled

    async def __aiter__(self) -> AsyncIterator[StreamEvent | RequestOutput]:
        while self._run.num_unfinished:
            while not self._inbox:
                await self._filled.wait()
                self._filled.clear()
            for number, item in enumerate(self._run.next_items()):
                if number % _ITEMS_AT_ONCE == 0:
                    await asyncio.sleep(0)  # lets other tasks run, however many items wait
                yield item

    async def aclose(self) -> None:
        self._run.close()


def _answer(function: Callable[[LLM], Result], answer: Future[Result], llm: LLM | BaseException) -> None:
    if not answer.set_running_or_notify_cancel():
        return
    try:
        if isinstance(llm, BaseException):
            raise llm
        answer.set_result(function(llm))
    except BaseException as error:
        answer.set_exception(error)


def _serve(load: Callable[[], LLM], commands: LLMCommands) -> None:
    """Runs the engine's thread: commands first, then a step if there is work, until the command None."""
    llm: LLM | BaseException
    try:
        llm = load()
    except BaseException as error:
        llm = error
    while True:
        if isinstance(llm, BaseException) or not llm.calls.has_work or not commands.empty():
            command = commands.get()
            if command is None:
                break
            command(llm)
        else:
            with suppress(BaseException):  # every call has the error; the thread goes on to answer others
                llm.calls.step()
    if not isinstance(llm, BaseException):
        llm.close()


def _stop(thread: threading.Thread, commands: LLMCommands, putting: threading.Lock) -> None:
    with putting:  # `alive` is False already
        commands.put(None)
    if thread.ident is not None:
        thread.join()
