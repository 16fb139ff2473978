"""Reading requests: JSON bodies within bounds, and work that ends when its client has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from mindbatch.io.strict_json import JsonFault, parts_fault
from mindbatch.prompts.prompt_lines import parse_row
from mindbatch.server.api_errors import ApiError, bad_request

Result = TypeVar("Result")
JSON = "application/json"


async def json_body(request: Request) -> dict[str, Any]:
    """The JSON object that a request brings; raises an ApiError that says why it is none."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON:  # a form that a browser sends for another site is none
        raise ApiError(415, f"content-type {kind or '(none)'}: must be {JSON}", "unsupported_media_type")
    return await asyncio.to_thread(_object_in, await request.body())


def _object_in(data: bytes) -> dict[str, Any]:
    try:
        if fault := parts_fault(data):
            raise JsonFault(fault)
        return parse_row(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise bad_request(f"the body is no UTF-8 text (byte {error.start})") from None
    except JsonFault as fault:
        raise bad_request(
            f"the body is {fault}" if str(fault).startswith("not ") else f"the body: {fault}"
        ) from None


async def while_connected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """Awaits the work, which is cancelled when the client has gone (ClientDisconnect)."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
