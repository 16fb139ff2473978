"""Guards all routes: authentication, origins, limits of number, size and time; writes the log."""

from __future__ import annotations

import asyncio
import base64
import binascii
import errno
import hmac
import time
import traceback
import uuid
from typing import NoReturn

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mindbatch.config.machine import parse_bytes
from mindbatch.io.errors import MindBatchError, passing_error
from mindbatch.io.screen_text import printable, say
from mindbatch.io.storage import reason_of
from mindbatch.server import request_tokens
from mindbatch.server.connections import IS_ADMITTED
from mindbatch.server.requests import ApiError
from mindbatch.server.service import Service

OPEN_ROUTES = ("/health",)
_UPLOAD = "/v1/files"
_FORM_BYTES = 1 << 16  # of a form without its file
_MIN_BYTES_PER_SECOND = 1024
"""Slowest rate at which a body may arrive."""
_RETRY_SECONDS = "5"
_MAX_WITH_READERS = 4
"""Limit of concurrent requests including GET requests, as a multiple of `server.max_requests`."""
_LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]", "::1")


class Guard:
    """An ASGI application around the routes, which isolates each request from the errors of others."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service
        self._server = service.config.server
        self._keys = self._server.read_keys()
        self._max_body = parse_bytes(self._server.max_body)
        self._max_file = parse_bytes(self._server.max_file) + _FORM_BYTES

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, send)
        service = self._service
        service.num_active += 1
        try:
            self._admit(exchange)
            scope[IS_ADMITTED] = True
            bounded = self._bounded(exchange, receive)
            await asyncio.wait_for(self._app(scope, bounded, exchange.send), self._server.request_seconds)
        except asyncio.TimeoutError:
            limit = self._server.request_seconds
            await exchange.refuse(ApiError(503, f"took longer than {limit} seconds", "timeout"))
        except ClientDisconnect:
            exchange.status = exchange.status or 499  # as web servers log it
        except ApiError as error:
            await exchange.refuse(error)
        except Exception as error:
            await self._failed(exchange, error)
        finally:
            service.num_active -= 1
            route = scope.get("route")
            service.metrics.answered(getattr(route, "path", "(none)"), exchange.status)
            if service.config.wants_verbose:
                say(f"{exchange.line}: {exchange.status or 'no answer'}{exchange.tokens}")

    async def _failed(self, exchange: _Exchange, error: Exception) -> None:
        """Answers an error that the request did not cause; a bug gets a traceback in the log."""
        if (passing := passing_error(error)) is not None:
            say(f"{exchange.line}: {error}")
            is_full = passing.errno in (errno.ENOSPC, errno.EDQUOT)
            refusal = ApiError(
                507 if is_full else 503,
                f"the server lacks resources ({reason_of(passing)}); try again later",
                "insufficient_storage" if is_full else "server_error",
                headers={"retry-after": _RETRY_SECONDS},
            )
        elif isinstance(error, MindBatchError):
            say(f"{exchange.line}: {error}")
            refusal = ApiError(503, "the engine cannot run it now", "server_error")
        else:
            say(f"{exchange.line}: {' '.join(traceback.format_exception(error))}")
            refusal = ApiError(500, "internal error; see the server's log", "server_error")
        await exchange.refuse(refusal)

    def _admit(self, exchange: _Exchange) -> None:
        path, headers = exchange.path, exchange.headers
        if path in OPEN_ROUTES:
            return
        if not self._server.has_key and self._server.is_local:
            self._refuse_other_hosts(headers.get("host", ""))
        self._refuse_other_pages(exchange)
        if (
            self._keys
            and exchange.method != "OPTIONS"
            and not self._has_key(headers.get("authorization", ""))
        ):
            challenge = "Basic" if path == "/" else "Bearer"
            raise ApiError(
                401,
                "the key is missing or wrong: Authorization: Bearer KEY",
                "invalid_api_key",
                headers={"www-authenticate": f'{challenge} realm="mindbatch"'},
            )
        if self._service.num_active > _MAX_WITH_READERS * self._server.max_requests:
            self._refuse_more()
        if exchange.method == "GET":
            return
        if self._service.is_draining:
            raise ApiError(503, "the server ends", "draining", headers={"retry-after": _RETRY_SECONDS})
        if self._service.num_active > self._server.max_requests:
            self._refuse_more()

    def _refuse_more(self) -> NoReturn:
        raise ApiError(
            429,
            f"{self._server.max_requests} requests are running, the maximum; try again",
            "too_many_requests",
            headers={"retry-after": "1"},
        )

    def _refuse_other_hosts(self, host: str) -> None:
        """Refuses requests for other host names, which DNS rebinding lets pages of other sites send."""
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if name and name.lower().rstrip(".") not in (*_LOCAL_NAMES, self._server.host):
            raise ApiError(
                403, f"host {name}: a server without a key answers to localhost only", "wrong_host"
            )

    def _refuse_other_pages(self, exchange: _Exchange) -> None:
        """Refuses requests from pages of other sites, with which browsers send a stored key."""
        headers = exchange.headers
        origin = headers.get("origin")
        if exchange.method == "GET" or (origin or "") in self._server.cors_origins:
            return
        is_own = origin is None or origin.partition("://")[2] == headers.get("host")
        if not is_own or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise ApiError(403, "pages of other sites may not call this server", "cross_site")

    def _has_key(self, authorization: str) -> bool:
        """Compares the keys in constant time."""
        scheme, _, credentials = authorization.partition(" ")
        key = credentials.strip().encode("latin-1")  # the bytes as they were sent
        if scheme.lower() == "basic":
            try:
                key = base64.b64decode(key, validate=True).partition(b":")[2]
            except binascii.Error:
                return False
        elif scheme.lower() != "bearer":
            return False
        return sum(hmac.compare_digest(key, allowed) for allowed in self._keys) > 0

    def _bounded(self, exchange: _Exchange, receive: Receive) -> Receive:
        """Wraps `receive` to raise ApiError if the body is too large or too slow."""
        is_upload = exchange.path == _UPLOAD
        max_bytes, key = (self._max_file, "max_file") if is_upload else (self._max_body, "max_body")
        too_large = ApiError(413, f"larger than server.{key}={getattr(self._server, key)}", "too_large")
        length = exchange.headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > max_bytes:
            raise too_large
        received, is_complete, started = 0, False, time.monotonic()

        async def bounded() -> Message:
            nonlocal received, is_complete
            if is_complete:
                return await receive()  # waits until the client disconnects
            limit = self._server.read_seconds
            seconds_left = started + limit + received / _MIN_BYTES_PER_SECOND - time.monotonic()
            try:
                message = await asyncio.wait_for(receive(), min(limit, max(seconds_left, 0)))
            except asyncio.TimeoutError:
                slow = (
                    f"no data within {limit} seconds, or less than {_MIN_BYTES_PER_SECOND} bytes per second"
                )
                raise ApiError(408, slow, "timeout") from None
            received += len(message.get("body", b""))
            is_complete = not message.get("more_body", False)
            if received > max_bytes:
                raise too_large
            return message

        return bounded


class _Exchange:
    def __init__(self, scope: Scope, send: Send) -> None:
        self._send = send
        self.method, self.path = scope["method"], scope["path"]
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self.status = 0
        self._started = time.perf_counter()
        self.id = uuid.uuid4().hex
        self.tokens = request_tokens.begin()

    @property
    def line(self) -> str:
        seconds = time.perf_counter() - self._started
        return f"{printable(self.method, 20)} {printable(self.path, 200)} ({self.id}, {seconds:.3f} s)"

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", []), (b"x-request-id", self.id.encode())]
        await self._send(message)

    async def refuse(self, error: ApiError) -> None:
        """Answers with an error, unless an answer was started."""
        if self.status:
            return
        await error.response({"type": "http"}, _disconnected, self.send)


async def _disconnected() -> Message:
    return {"type": "http.disconnect"}
