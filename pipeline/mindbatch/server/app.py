"""The routes, and no others."""

import asyncio
from importlib.resources import files

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from mindbatch.server import batch_routes, completions, embeddings, responses
from mindbatch.server.guard import Guard
from mindbatch.server.metrics import CONTENT_TYPE
from mindbatch.server.requests import ApiError
from mindbatch.server.service import Service

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
"""Content policy of the page: nothing from elsewhere."""


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
        Route("/v1/embeddings", embeddings.embeddings, methods=["POST"]),
        Route("/v1/score", embeddings.score, methods=["POST"]),
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
    """Answers to what Starlette refuses: a path or a method without a route, a form that is none."""
    if error.status_code in (404, 405):
        what = f"{request.method} {request.url.path}: no such route; docs/server.md lists them"
        return ApiError(error.status_code, what, "no_such_route", headers=error.headers).response
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
