"""Requests: JSON bodies within bounds, work that ends when its client has gone, errors in OpenAI's form."""

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
MOST_ERRORS = 20
"""Errors of one kind that are told; comparing each name with all that are known takes long."""

MOST_CONTAINERS = 50_000
"""Lists and objects of a body: messages, their parts, prompts of token ids, tools and what these hold."""
MOST_KEYS = 200
"""Keys of a body; some requests are made anew for each of their prompts."""
_MOST_TEXTS = 200_000
"""Keys and texts of a body; an object of a million keys holds the interpreter for half a second."""


class ApiError(Exception):
    """A request that is refused. message: what was found, and what is allowed."""

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


def refuse_unknown(content: Mapping[str, Any], known: Sequence[str], where: str = "") -> None:
    """Raises an ApiError that names every key which is not known, and the near one."""
    unknown = [name for name in content if name not in known]
    lines = [f"{where}{shown(name)}: unknown{did_you_mean(name, known)}" for name in unknown[:MOST_ERRORS]]
    if unknown:
        more = len(unknown) - len(lines)
        raise bad_request(lines + [f"and {more} more"] * (more > 0))


async def json_body(request: Request) -> dict[str, Any]:
    """The JSON object that a request brings; raises an ApiError that says why it is none."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON:  # a form that a browser sends for another site is none
        raise ApiError(415, f"content-type {kind or '(none)'}: must be {JSON}", "unsupported_media_type")
    return await asyncio.to_thread(_object_in, await request.body())


def _object_in(data: bytes) -> dict[str, Any]:
    data = data.strip(b" \t\r\n")  # which JSON's reader takes long for
    try:
        if problem := parts_error(data, MOST_CONTAINERS, _MOST_TEXTS):
            raise JsonError(problem)
        content = parse_row(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise bad_request(f"the body is no UTF-8 text (byte {error.start})") from None
    except JsonError as problem:
        raise bad_request(
            f"the body is {problem}" if str(problem).startswith("not ") else f"the body: {problem}"
        ) from None
    if len(content) > MOST_KEYS:
        raise bad_request(f"the body has {len(content)} keys; at most {MOST_KEYS}")
    return content


def refuse_longer(content: Mapping[str, Any], name: str, most: int) -> None:
    """Raises an ApiError where a list of the body, or of an object within, has more than so many items."""
    if isinstance(items := content.get(name), list) and len(items) > most:
        raise bad_request(f"{name}: holds {len(items)}; at most {most}", name)


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
