"""Answers and streams have a size: too large ones are refused, and what nobody reads does not pile up."""

import asyncio
import errno
import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.formparsers import MultiPartParser
from starlette.requests import Request
from starlette.responses import StreamingResponse

from mindbatch.decoding import DecodingParams
from mindbatch.engine.calls import Inbox, NotTakenError
from mindbatch.engine.engine import StepResult
from mindbatch.engine.request import Request as EngineRequest
from mindbatch.engine.request import StreamEvent
from mindbatch.message_formats.formats import FORMATS
from mindbatch.run.openai_response import error_code
from mindbatch.server.answers import Choices, refuse_many_logprobs
from mindbatch.server.batch_routes import upload
from mindbatch.server.requests import ApiError
from mindbatch.server.service import Service


def body_of(response: Any) -> bytes:
    if not isinstance(response, StreamingResponse):
        return bytes(response.body)

    async def read() -> bytes:
        return b"".join([bytes(chunk) async for chunk in response.body_iterator])  # type: ignore[arg-type]

    return asyncio.run(read())


@pytest.mark.parametrize("length", [1, 300_000])
def test_choices_stand_in_the_order_of_their_rows_and_are_numbered(length: int) -> None:
    choices = Choices()
    for place in (2, 0, 1):
        choices.add(place, [{"index": n, "text": f"{place}{n}" * length} for n in range(2)])
    response = choices.response({"id": "a", "usage": {"b": 1}})
    data = body_of(response)
    assert response.headers["content-length"] == str(len(data))
    content = json.loads(data)
    assert {name: content[name] for name in ("id", "usage")} == {"id": "a", "usage": {"b": 1}}
    assert [choice["index"] for choice in content["choices"]] == [*range(6)]
    expected = [f"{place}{n}" * length for place in range(3) for n in range(2)]
    assert [choice["text"] for choice in content["choices"]] == expected


def test_an_answer_that_becomes_too_large_is_refused() -> None:
    choices = Choices(max_bytes=1 << 20)
    choices.add(0, [{"text": "a" * 1_000_000}])
    with pytest.raises(ApiError, match="more than 1 MiB") as caught:
        choices.add(1, [{"text": "a" * 100_000}])
    assert caught.value.code == "answer_too_large"


def requests(count: int, **params: Any) -> list[EngineRequest]:
    return [EngineRequest(str(n), (1, 2, 3), DecodingParams(**params)) for n in range(count)]


def test_what_may_be_too_large_is_refused_before_it_is_run() -> None:
    many = {"do_sample": True, "num_return_sequences": 8, "logprobs": 20, "max_new_tokens": 300}
    with pytest.raises(ApiError, match="may have 20160000 log-probabilities; at most 3000000"):
        refuse_many_logprobs(requests(400, **many), 2048)
    with pytest.raises(ApiError, match="may have 3065496"):
        refuse_many_logprobs(requests(71, **{**many, "max_new_tokens": None, "max_length": 260}), 2048)
    with pytest.raises(ApiError, match="at most 3000000"):
        refuse_many_logprobs(requests(50_000, prompt_logprobs=20, max_new_tokens=1), 2048)
    refuse_many_logprobs(requests(50, **many), 2048)
    refuse_many_logprobs(requests(1000, max_new_tokens=2000), 2048)
    refuse_many_logprobs(
        requests(1, logprobs=20, max_new_tokens=1_000_000), 2_000_000
    )  # of one there is no less


def test_an_inbox_that_nobody_empties_is_given_up() -> None:
    inbox = Inbox(max_waiting=100)
    event = StreamEvent("0", 0, "a", (1,), None, logprobs=({1: 0.0, 2: -1.0},))
    for _ in range(50):  # who reads may be behind, and goes on
        inbox.append(StepResult([event] * 10, []))
        inbox.append(StepResult([event], []))
        assert not inbox.is_over
        assert [inbox.popleft(), inbox.popleft()]
    for _ in range(1000):
        inbox.append(StepResult([event], []))
    assert inbox.is_over
    assert len(inbox) < 30
    assert isinstance(inbox.popleft(), NotTakenError)


def test_a_text_that_is_far_too_long_has_the_code_that_clients_know() -> None:
    reason = "the text has 500000 characters, far more than 2048 tokens, the most that can be taken"
    assert error_code("prompt", reason) == "context_length_exceeded"


def test_no_request_waits_until_the_rows_of_another_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    is_over = threading.Event()

    def row(service: Service, endpoint: str, body: dict[str, Any], key: str) -> str:
        if "slow" in body:
            is_over.wait(60)
        return key

    monkeypatch.setattr(Service, "_row", row)
    service: Any = object.__new__(Service)
    service.format = FORMATS["hermes"]

    async def scene() -> None:
        slow = asyncio.create_task(service.rows("", [{"slow": 1}]))
        await asyncio.sleep(0)
        assert await asyncio.wait_for(service.rows("", [{}, {}]), 30) == ["0", "1"]
        assert not slow.done()
        is_over.set()
        assert await slow == ["0"]

    asyncio.run(scene())


def test_an_upload_without_room_for_it_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(parser: MultiPartParser) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(MultiPartParser, "parse", full)
    app = SimpleNamespace(state=SimpleNamespace(service=SimpleNamespace(batches=SimpleNamespace())))
    head = [(b"content-type", b"multipart/form-data; boundary=x")]
    request = Request({"type": "http", "app": app, "headers": head, "method": "POST", "query_string": b""})
    with pytest.raises(ApiError, match="temporary files cannot be written .No space left") as caught:
        asyncio.run(upload(request))
    assert caught.value.status == 507
