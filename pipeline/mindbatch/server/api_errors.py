"""Errors as OpenAI's API has them: a status, and a body with message, type, param and code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import JSONResponse

from mindbatch.io.fault_lines import did_you_mean, shown
from mindbatch.io.screen_text import printable

_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
LONGEST_MESSAGE = 4000
MOST_FAULTS = 20
"""Errors of one kind that are told; comparing each name with all that are known takes long."""


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
        """The error object."""
        fallback = "invalid_request_error" if self.status < 500 else "server_error"
        kind = _TYPES.get(self.status, fallback)
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    @property
    def response(self) -> JSONResponse:
        """The answer to the request."""
        return JSONResponse(self.body, self.status, self.headers)


def bad_request(message: str | Sequence[str], param: str | None = None) -> ApiError:
    """An error of the request's own."""
    return ApiError(400, message, "invalid_request", param)


def refuse_unknown(content: Mapping[str, Any], known: Sequence[str], where: str = "") -> None:
    """Raises an ApiError that names every key which is not known, and the near one."""
    unknown = [name for name in content if name not in known]
    lines = [f"{where}{shown(name)}: unknown{did_you_mean(name, known)}" for name in unknown[:MOST_FAULTS]]
    if unknown:
        more = len(unknown) - len(lines)
        raise bad_request(lines + [f"and {more} more"] * (more > 0))
