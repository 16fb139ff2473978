"""Reads bounded JSON bodies, cancels work of disconnected clients, and writes errors in OpenAI's form."""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse

from mindbatch.io.error_lines import did_you_mean, shown
from mindbatch.io.screen_text import printable
from mindbatch.io.strict_json import JsonError, parts_error
from mindbatch.prompts.prompt_lines import parse_row

Result = TypeVar("Result")
JSON = "application/json"
_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
LONGEST_MESSAGE = 4000
MAX_ERRORS = 20
"""Errors of one kind that are listed; finding the most similar known name for each is slow."""

MAX_CONTAINERS = 50_000
"""Lists and objects in a body: messages, their parts, prompts of token ids, tools and their content."""
MAX_KEYS = 200
"""Keys of a body, which is copied for each prompt."""
_MAX_TEXTS = 200_000
"""Keys and texts in a body; parsing an object of a million keys blocks the interpreter for 0.5 s."""


class ApiError(Exception):
    """Raised to refuse a request. message: the error, and what is allowed."""

    def __init__(
        self,
        status: int,
        message: str | Sequence[str],
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        text = message if isinstance(message, str) else "; ".join(message)
        super().__init__(printable(text, LONGEST_MESSAGE))
        self.status, self.code, self.param, self.headers = status, code, param, headers

    @property
    def body(self) -> dict[str, Any]:
        fallback = "invalid_request_error" if self.status < 500 else "server_error"
        kind = _TYPES.get(self.status, fallback)
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    @property
    def response(self) -> JSONResponse:
        return JSONResponse(self.body, self.status, self.headers)


def bad_request(message: str | Sequence[str], param: str | None = None) -> ApiError:
    return ApiError(400, message, "invalid_request", param)


def refuse_unknown(content: Mapping[str, Any], known: Sequence[str], prefix: str = "") -> None:
    """Raises an ApiError that names all unknown keys and the most similar known ones.

    prefix: precedes the names of the keys in the message.
    """
    unknown = [name for name in content if name not in known]
    lines = [f"{prefix}{shown(name)}: unknown{did_you_mean(name, known)}" for name in unknown[:MAX_ERRORS]]
    if unknown:
        more = len(unknown) - len(lines)
        raise bad_request(lines + [f"and {more} more"] * (more > 0))


async def json_body(request: Request) -> dict[str, Any]:
    """Reads the JSON object of a request. Raises ApiError if it is invalid."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON:  # a form that a browser sends for another site has another type
        raise ApiError(415, f"content-type {kind or '(none)'}: must be {JSON}", "unsupported_media_type")
    return await asyncio.to_thread(_object_in, await request.body())


def _object_in(data: bytes) -> dict[str, Any]:
    data = data.strip(b" \t\r\n")  # which the JSON reader is slow to skip
    try:
        if problem := parts_error(data, MAX_CONTAINERS, _MAX_TEXTS):
            raise JsonError(problem)
        content = parse_row(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise bad_request(f"the body is not UTF-8 (byte {error.start})") from None
    except JsonError as problem:
        raise bad_request(
            f"the body is {problem}" if str(problem).startswith("not ") else f"the body: {problem}"
        ) from None
    if len(content) > MAX_KEYS:
        raise bad_request(f"the body has {len(content)} keys; at most {MAX_KEYS}")
    return content


def refuse_longer(content: Mapping[str, Any], name: str, max_items: int) -> None:
    """Raises an ApiError if the list under `name` has more than `max_items` items."""
    if isinstance(items := content.get(name), list) and len(items) > max_items:
        raise bad_request(f"{name}: has {len(items)} items; at most {max_items}", name)


async def while_connected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """Awaits the work; cancels it and raises ClientDisconnect if the client disconnects."""
    task = asyncio.ensure_future(work)
    disconnected = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((task, disconnected), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        disconnected.cancel()
        await asyncio.gather(task, disconnected, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
