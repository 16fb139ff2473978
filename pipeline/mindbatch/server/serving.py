"""Runs the task `mindbatch serve`: binds the socket, serves the routes, drains at the end."""

import asyncio
import logging
import socket
import time
from importlib.resources import files
from types import FrameType

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from mindbatch.async_llm import AsyncLLM
from mindbatch.io.errors import EXIT_DONE, ConfigError, MindBatchError
from mindbatch.io.moving_bar import LoadingLine
from mindbatch.io.screen_text import hide, say
from mindbatch.llm import LLM
from mindbatch.loading.providers import OpenedFolder, open_model
from mindbatch.run.identity import replica_of
from mindbatch.run.result_files import message_format
from mindbatch.server import batch_routes, completions, responses
from mindbatch.server.batches import Batches
from mindbatch.server.connections import MAX_ACCEPTED_AT_ONCE, Connection, Listener, allow_descriptors
from mindbatch.server.guard import Guard
from mindbatch.server.metrics import CONTENT_TYPE, Metrics
from mindbatch.server.requests import ApiError
from mindbatch.server.schema import ServeConfig
from mindbatch.server.service import Service

_LARGEST_HEAD = 64 << 10
_SECONDS_BETWEEN_REMOVALS = 3600
_SECONDS_FOR_ERRORS = 5
"""Time in which requests that were ended get their error."""
_LINGER_SECONDS = 2
"""Time for the rest of a request that was answered before it was complete."""


def bound_socket(config: ServeConfig) -> Listener:
    """Binds a socket to the configured address, without listening yet.

    Raises:
        ConfigError: the address is in use, or not of this machine.
    """
    host, port = config.server.host, config.server.port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # Without the protocol's number asyncio does not set TCP_NODELAY, which costs 40 ms an answer.
        bound = Listener(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            f"server.host={host}, server.port={port}: cannot be used ({reason}); use another port, or 0"
        ) from error
    return bound


def run(config: ServeConfig) -> int:
    for key in config.server.read_keys():  # from messages, logs and records
        hide(key.decode(), "server.api_key")
    bound = bound_socket(config)
    bound.max_connections = allow_descriptors()
    opened = open_model(config.model, replica_of(config.parallel).part_of(0))
    with LoadingLine() as line:
        llm = LLM.from_config(config, line, opened=opened)
    if config.decoding.max_length is None and config.decoding.max_new_tokens is None:
        # OpenAI's clients expect no limit but the model's.
        vars(config.decoding).update(max_length=llm.max_sequence_tokens)
    return asyncio.run(_serve(config, llm, opened, bound))


async def _serve(config: ServeConfig, llm: LLM, opened: OpenedFolder, bound: Listener) -> int:
    async with AsyncLLM.over(llm) as engine:
        batches = None if config.server.batches_dir is None else Batches(config, opened, llm, engine)
        format = message_format(config.server.message_format, llm.tokenizer)
        service = Service(config, llm, engine, Metrics(config.name), batches, format)
        server = _Server(_uvicorn_config(config, service), service)
        bound.connections = server.server_state.connections
        if batches is not None:
            await asyncio.to_thread(batches.start)
        maintenance = asyncio.create_task(_maintain(batches))
        try:
            await server.serve([bound])
        finally:
            maintenance.cancel()
            if batches is not None:
                await asyncio.to_thread(batches.stop)
    return EXIT_DONE


def _uvicorn_config(config: ServeConfig, service: Service) -> uvicorn.Config:
    server = config.server
    # Their messages are about clients; the guard logs errors.
    for name in ("uvicorn", "asyncio", "python_multipart"):
        logging.getLogger(name).setLevel(logging.CRITICAL)

    return uvicorn.Config(
        application(service),
        http=Connection,
        backlog=MAX_ACCEPTED_AT_ONCE,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=server.read_seconds,
        timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=_LARGEST_HEAD,
        ssl_certfile=server.ssl_certfile,
        ssl_keyfile=server.ssl_keyfile,
    )


async def _maintain(batches: Batches | None) -> None:
    """Ends expired batches each second, and removes old files and batches each hour."""
    seconds = 0
    while batches is not None:
        try:  # in threads: both wait while a record is written
            await asyncio.to_thread(batches.end_expired)
            if seconds % _SECONDS_BETWEEN_REMOVALS == 0:
                await asyncio.to_thread(batches.remove_old)
        except (OSError, MindBatchError) as error:
            say(f"server.keep_days: {error}")
        seconds += 1
        await asyncio.sleep(1)


class _Server(uvicorn.Server):
    """Drains at the first signal: finishes running requests and refuses new ones; ends at the second."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._last_moment: float | None = None
        self._idle: dict[
            H11Protocol, tuple[object, float]
        ] = {}  # the last request of a connection, and since when

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        scheme = "https" if self.config.is_ssl else "http"
        for bound in sockets or ():
            host, port = bound.getsockname()[:2]
            host = f"[{host}]" if ":" in host else host
            say(f"{self._service.model_name}: {scheme}://{host}:{port}/v1 (Ctrl-C ends)")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        seconds = self._service.config.server.drain_seconds
        self._last_moment = time.monotonic() + (seconds if self._last_moment is None else 0)
        self._service.is_draining = True

    def _end_idle(self) -> None:
        """Ends connections that do not send a complete head in time."""
        now, before, self._idle = time.monotonic(), self._idle, {}
        for connection in [*self.server_state.connections]:
            assert isinstance(connection, H11Protocol)
            request = connection.cycle
            if request is not None and not request.response_complete:
                continue  # the guard bounds it
            last_request, since = before.get(connection, (request, now))
            since = since if last_request is request else now
            self._idle[connection] = request, since
            is_spent = connection.conn.their_state is h11.SEND_BODY
            limit = _LINGER_SECONDS if is_spent else self._service.config.server.read_seconds
            if now - since > 2 * limit:
                connection.transport.abort()  # the client does not read the answer
            elif now - since > limit:
                connection.transport.close()

    async def on_tick(self, counter: int) -> bool:
        self._end_idle()
        if self._last_moment is not None and not self.should_exit:
            if self._service.batches is not None:
                await asyncio.to_thread(self._service.batches.interrupt)
            seconds_late = time.monotonic() - self._last_moment
            if seconds_late > 0 and self._service.num_active:
                await self._service.engine.close()  # running requests get an error
            self.should_exit = seconds_late > _SECONDS_FOR_ERRORS or self._service.num_active == 0
        return await super().on_tick(counter)


_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
"""Content security policy of the page: only its own content."""


def application(service: Service) -> Starlette:
    routes = [
        Route("/", page),
        Route("/health", health),
        Route("/ready", ready),
        Route("/metrics", metrics),
        Route("/v1/models", completions.models),
        Route("/v1/models/{name:path}", completions.model),
        Route("/v1/chat/completions", completions.chat_completions, methods=["POST"]),
        Route("/v1/completions", completions.completions, methods=["POST"]),
        Route("/v1/responses", responses.create, methods=["POST"]),
        Route("/v1/embeddings", completions.embeddings, methods=["POST"]),
        Route("/v1/score", completions.score, methods=["POST"]),
        Route("/v1/tokenize", completions.tokenize, methods=["POST"]),
        Route("/v1/detokenize", completions.detokenize, methods=["POST"]),
        Route("/v1/files", batch_routes.upload, methods=["POST"]),
        Route("/v1/files", batch_routes.list_files),
        Route("/v1/files/{name}", batch_routes.read_file),
        Route("/v1/files/{name}", batch_routes.delete_file, methods=["DELETE"]),
        Route("/v1/files/{name}/content", batch_routes.file_content),
        Route("/v1/batches", batch_routes.create_batch, methods=["POST"]),
        Route("/v1/batches", batch_routes.list_batches),
        Route("/v1/batches/{name}", batch_routes.read_batch),
        Route("/v1/batches/{name}/cancel", batch_routes.cancel_batch, methods=["POST"]),
    ]
    middleware = [Middleware(Guard, service=service)]
    if origins := service.config.server.cors_origins:
        cors = Middleware(CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"])
        middleware.insert(0, cors)
    handlers = {ApiError: _refused, HTTPException: _unknown}
    app = Starlette(routes=routes, middleware=middleware, exception_handlers=handlers)  # type: ignore[arg-type]
    app.router.redirect_slashes = False
    app.state.service = service
    return app


async def _refused(request: Request, error: ApiError) -> Response:
    return error.response


async def _unknown(request: Request, error: HTTPException) -> Response:
    """Answers what Starlette refuses: a path or method without a route, an invalid form."""
    if error.status_code in (404, 405):
        message = f"{request.method} {request.url.path}: no such route; docs/server.md lists them"
        return ApiError(error.status_code, message, "no_such_route", headers=error.headers).response
    return ApiError(error.status_code, error.detail, "invalid_request").response


async def health(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def ready(request: Request) -> Response:
    service: Service = request.app.state.service
    if service.is_draining:
        return JSONResponse({"status": "draining"}, 503)
    return JSONResponse({"status": "ready"})


async def metrics(request: Request) -> Response:
    service: Service = request.app.state.service
    statistics = await asyncio.wrap_future(service.engine.ask(lambda llm: llm.statistics))
    batches = {} if service.batches is None else service.batches.by_status()
    return Response(service.metrics.page(statistics, batches), media_type=CONTENT_TYPE)


async def page(request: Request) -> Response:
    text = files("mindbatch.server").joinpath("page.html").read_text(encoding="utf-8")
    headers = {"content-security-policy": _POLICY, "x-frame-options": "DENY", "cache-control": "no-store"}
    return HTMLResponse(text, headers=headers)
