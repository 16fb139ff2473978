"""A rank process's end of its connection to the front: messages in order, a sign of life each second."""

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from queue import Empty, SimpleQueue
from typing import Any, NoReturn

from mindbatch.engine.engine import StepEngine, StepResult
from mindbatch.engine.request import Request
from mindbatch.io.errors import EXIT_FAILED, PromptError
from mindbatch.io.screen_text import say
from mindbatch.replicas.connection import Message, MessageConnection, MessageError
from mindbatch.replicas.messages import (
    ABORT,
    ADD,
    BEAT,
    HELLO,
    NOTICE,
    STEP,
    request_of,
    result_fields,
)

BEAT_SECONDS = 1.0
LOADING, WAITING, COMPILING, STEPPING, IDLE = "loading", "waiting", "compiling", "step", "idle"


class FrontLink:
    """Messages from and to the front. When that has gone this process ends at once, whatever it does."""

    def __init__(
        self,
        connection: MessageConnection,
        hello: Mapping[str, Any],
        end_process: Callable[[int], object] = os._exit,
    ) -> None:
        """`hello`: what this process says of itself, before anything else."""
        self._connection = connection
        self._end_process = end_process
        self._ended = threading.Event()
        self.send(HELLO, **hello)
        self._messages: SimpleQueue[Message] = SimpleQueue()
        self._activity, self._since, self._steps = LOADING, time.monotonic(), 0
        for work in (self._read, self._beat):
            threading.Thread(target=work, name=work.__name__, daemon=True).start()

    def send(self, kind: str, **fields: Any) -> None:
        """Sends a message; ends this process if nobody takes it."""
        try:
            self._connection.send(kind, **fields)
        except OSError as error:
            self._leave(error)

    def receive(self, *, wait: bool = True) -> Message | None:
        """The front's next message; None where there is none and this is not to wait."""
        with suppress(Empty):
            return self._messages.get(block=wait)
        return None

    def begin(self, activity: str) -> None:
        """Says from now on that the process does something else: one of those above."""
        self._steps += activity == STEPPING
        self._activity, self._since = activity, time.monotonic()

    def notice(self, text: str) -> None:
        """Tells the front what takes time; "" is that it is over. See `build.load_model`."""
        activity = text.partition(" ")[0]
        if activity in (LOADING, WAITING, COMPILING):
            self.begin(activity)
        elif self._activity == COMPILING:
            self.begin(STEPPING)
        self.send(NOTICE, text=text)

    def _read(self) -> None:
        try:
            while True:
                self._messages.put(self._connection.receive())
        except (EOFError, OSError, MessageError) as error:
            self._leave(error)

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            seconds = time.monotonic() - self._since
            processor = round(time.process_time(), 3)
            self.send(
                BEAT,
                doing=self._activity,
                seconds=round(seconds, 3),
                steps=self._steps,
                processor_seconds=processor,
            )

    def _leave(self, error: Exception) -> None:
        """Ends this process from whatever thread; nobody is left to be told."""
        if not self._ended.is_set():
            self._ended.set()
            say(f"the connection to the process that coordinates the job has ended ({error!r})")
        self._end_process(EXIT_FAILED)


def serve(link: FrontLink, engine: StepEngine) -> NoReturn:
    """Computes whatever the front asks for; does not return.

    Raises:
        Exception: a step failed.
        MessageError: the front said something that is not understood.
    """
    while True:
        if not engine.has_work:
            link.begin(IDLE)
        while (message := link.receive(wait=not engine.has_work)) is not None:
            _answer(link, engine, message)
        link.begin(STEPPING)
        _send(link, engine, engine.step())


def _answer(link: FrontLink, engine: StepEngine, message: Message) -> None:
    if message.kind == ADD:
        for request in message.fields["requests"]:
            _add(link, engine, request_of(request))
    elif message.kind == ABORT:
        keys = message.fields["keys"]
        engine.abort(None if keys is None else set(keys))
        _send(link, engine, StepResult([], []))  # its load has changed
    else:
        raise MessageError(f"the front sent {message.kind!r}, which a leader does not understand")


def _add(link: FrontLink, engine: StepEngine, request: Request) -> None:
    try:
        engine.add(request)
    except PromptError as error:  # what the front has not found: a grammar that took too long here
        _send(link, engine, StepResult([], [request.failure(error)]))


def _send(link: FrontLink, engine: StepEngine, result: StepResult) -> None:
    link.send(STEP, statistics=asdict(engine.statistics), **result_fields(result))
