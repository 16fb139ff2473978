"""The leader's loop: requests of the front into the engine, what its steps bring back to the front."""

from __future__ import annotations

from typing import NoReturn

from mindbatch.engine.engine import StepEngine, StepResult
from mindbatch.engine.request import Request
from mindbatch.io.errors import PromptError
from mindbatch.replicas.connection import Message, MessageError
from mindbatch.replicas.front_link import IDLE, STEPPING, FrontLink
from mindbatch.replicas.messages import ABORT, ADD, STEP, requests_of, result_fields, statistics_fields


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
        for request in requests_of(message.fields, message.arrays):
            _add(link, engine, request)
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
    link.send(STEP, statistics=statistics_fields(engine.statistics), **result_fields(result))
