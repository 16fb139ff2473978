"""Serves completions, embeddings, scores and tokens; a body is checked like a line of a batch."""

import asyncio
import base64
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from mindbatch.dataset.openai_request import CHAT, COMPLETION, EMBEDDINGS
from mindbatch.dataset.rows import DataRow
from mindbatch.engine.calls import NotTakenError
from mindbatch.engine.request import result_body
from mindbatch.io.error_lines import shown
from mindbatch.io.errors import MindBatchError
from mindbatch.io.screen_text import say
from mindbatch.prompts.tokenizer import Tokenizer
from mindbatch.run.openai_response import embeddings as embedding_list
from mindbatch.run.result_rows import FinishedRow
from mindbatch.server.generation import OnlineRequest, Stream, sse
from mindbatch.server.records import new_id
from mindbatch.server.requests import ApiError, bad_request, json_body, refuse_unknown, while_connected
from mindbatch.server.service import Service

MAX_PROMPTS = 1024


async def chat_completions(request: Request) -> Response:
    return await _answer(request, CHAT)


async def completions(request: Request) -> Response:
    return await _answer(request, COMPLETION)


async def _answer(request: Request, endpoint: str) -> Response:
    service: Service = request.app.state.service
    body = await json_body(request)
    stream, with_usage, always = _stream_options(body)
    echo = flag(body, "echo") if endpoint == COMPLETION else False
    if stream and echo:
        raise bad_request("echo=true: not with stream=true; remove one", "echo")
    prompts = [body] if endpoint == CHAT else one_prompt_each(body, "prompt")
    if body.get("prompt_logprobs") is not None and (stream or echo or len(prompts) > 1):
        message = "prompt_logprobs: needs one prompt, without stream and echo; remove it"
        raise bad_request(message, "prompt_logprobs")
    rows = await service.rows(endpoint, prompts)
    generation = OnlineRequest(service, [_scoring(row) for row in rows] if echo else rows, echo)
    if not stream:
        return await while_connected(request, generation.answer())
    return await streamed(service, Stream(generation, with_usage=with_usage, always=always).events())


def _stream_options(body: dict[str, Any]) -> tuple[bool, bool, bool]:
    """Removes the options of a stream from a body: stream, include_usage and vLLM's
    continuous_usage_stats."""
    stream = flag(body, "stream")
    options = body.pop("stream_options", None) or {}
    if not isinstance(options, Mapping):
        raise bad_request(f"stream_options={shown(options)}: must be an object", "stream_options")
    if options and not stream:
        raise bad_request("stream_options: has no effect without stream=true", "stream_options")
    known = ("include_usage", "include_obfuscation", "continuous_usage_stats")
    refuse_unknown(options, known, "stream_options.")
    return stream, flag({**options}, "include_usage"), flag({**options}, "continuous_usage_stats")


def flag(body: dict[str, Any], name: str) -> bool:
    """Removes a key from the body and returns its value, which must be true, false or null."""
    value = body.pop(name, None)
    if not isinstance(value, bool | None):
        raise bad_request(f"{name}={shown(value)}: must be true or false", name)
    return bool(value)


def one_prompt_each(body: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Splits a body with a list of texts or of token ids under `name` into one body per prompt."""
    prompt = body.get(name)
    several = isinstance(prompt, list) and len(prompt) > 0 and not isinstance(prompt[0], int)
    if not several:
        return [body]
    assert isinstance(prompt, list)
    if len(prompt) > MAX_PROMPTS:
        raise bad_request(f"{name}: has {len(prompt)} prompts; at most {MAX_PROMPTS}", name)
    return [{**body, name: item} for item in prompt]


def _scoring(row: DataRow) -> DataRow:
    """Requests log-probabilities of the prompt if those of the output are requested."""
    count = row.overrides.get("logprobs")
    return row if count is None else replace(row, overrides={**row.overrides, "prompt_logprobs": count})


def json_response(content: Mapping[str, Any]) -> Response:
    """Makes a JSON answer, with numbers and texts written as in the results of batches."""
    return Response(sse(content)[len(b"data: ") : -2], media_type="application/json")


async def streamed(service: Service, events: AsyncGenerator[bytes, None]) -> Response:
    """Starts a stream once its first event exists, so that an error before it has its own status."""
    try:
        first = await anext(events)
    except StopAsyncIteration:
        first = b""
    headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
    return StreamingResponse(_rest(service, first, events), media_type="text/event-stream", headers=headers)


async def _rest(
    service: Service, first: bytes, events: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    async with aclosing(events):
        yield first
        try:
            async for event in events:
                yield event
        except ApiError as error:
            yield sse(error.body)
        except NotTakenError as error:
            yield sse(ApiError(408, str(error), "timeout").body)
        except MindBatchError as error:
            if not service.is_draining:
                say(f"a stream ended: {error}")
            reason = "the server ends" if service.is_draining else "the engine has failed"
            yield sse(ApiError(503, reason, "server_error").body)


async def models(request: Request) -> Response:
    service: Service = request.app.state.service
    names = dict.fromkeys((service.model_name, *service.config.lora.names))
    return JSONResponse({"object": "list", "data": [_model(name, service) for name in names]})


async def model(request: Request) -> Response:
    service: Service = request.app.state.service
    service.check_model(name := request.path_params["name"])
    return JSONResponse(_model(name, service))


def _model(name: str, service: Service) -> dict[str, Any]:
    is_adapter = (service.config.lora.adapters or {}).get(
        name
    ) is not None  # null: the model without an adapter
    parent = service.model_name if is_adapter and name != service.model_name else None
    return {
        "id": name,
        "object": "model",
        "created": service.started,
        "owned_by": "mindbatch",
        "parent": parent,
        "max_model_len": service.llm.seq_length,
    }


async def tokenize(request: Request) -> Response:
    """Returns the token ids of a text, or of a conversation by the chat template."""
    service: Service = request.app.state.service
    body = await json_body(request)
    known = ("model", "prompt", "messages", "tools", "chat_template_kwargs", "add_special_tokens")
    refuse_unknown(body, known)
    service.check_model(body.pop("model", None))
    add_special = flag(body, "add_special_tokens") if "add_special_tokens" in body else True
    if "messages" in body:
        [row] = await service.rows(CHAT, [body])
    elif isinstance(body.get("prompt"), str):
        [row] = await service.rows(COMPLETION, [body])
    else:
        raise bad_request("prompt: must be a text; or set messages", "prompt")
    ids = await service.tokens(row, add_special)
    return JSONResponse({"count": len(ids), "max_model_len": service.llm.seq_length, "tokens": ids})


async def detokenize(request: Request) -> Response:
    service: Service = request.app.state.service
    body = await json_body(request)
    refuse_unknown(body, ("model", "tokens"))
    service.check_model(body.get("model"))
    text = await asyncio.to_thread(_text_of, service.tokenizer, body.get("tokens"))
    return JSONResponse({"prompt": text})


def _text_of(tokenizer: Tokenizer, tokens: Any) -> str:
    size = tokenizer.vocab_size
    if not isinstance(tokens, list) or not all(type(token) is int and 0 <= token < size for token in tokens):
        raise bad_request(f"tokens={shown(tokens)}: must be a list of token ids below {size}", "tokens")
    return tokenizer.decode(tokens, skip_special_tokens=False)


_FORMATS = ("float", "base64")


async def embeddings(request: Request) -> Response:
    """Returns vectors of length 1; `encoding_format` base64 encodes their float32 values, little-endian."""
    service: Service = request.app.state.service
    body = await json_body(request)
    if (form := body.pop("encoding_format", None) or "float") not in _FORMATS:
        raise bad_request(f"encoding_format={shown(form)}: must be float or base64", "encoding_format")
    answer = await while_connected(request, _embedded(service, body))
    return await asyncio.to_thread(_vectors_as, form, answer)


def _vectors_as(form: str, answer: dict[str, Any]) -> Response:
    if form == "base64":
        for item in answer["data"]:
            data = np.asarray(item["embedding"], "<f4").tobytes()
            item["embedding"] = base64.b64encode(data).decode()
    return json_response(answer)


async def score(request: Request) -> Response:
    """Returns the cosines of text_1 with each of text_2, or pairwise if text_1 has as many texts."""
    service: Service = request.app.state.service
    body = await json_body(request)
    refuse_unknown(body, ("model", "text_1", "text_2"))
    first, second = (_texts(body, name) for name in ("text_1", "text_2"))
    if len(first) not in (1, len(second)):
        raise bad_request(f"text_1: has {len(first)} texts and text_2 {len(second)}; must be 1 or equal")
    request_body = {"input": [*first, *second], "model": body.get("model")}
    answer = await while_connected(request, _embedded(service, request_body))
    return await asyncio.to_thread(_scored, answer, len(first), service.started)


def _scored(answer: dict[str, Any], count: int, created: int) -> Response:
    """Returns the cosines of the first `count` vectors with the vectors after them."""
    vectors = np.asarray([item["embedding"] for item in answer["data"]], np.float64)
    cosines = (vectors[:count] * vectors[count:]).sum(axis=1)
    scores = [
        {"index": index, "object": "score", "score": cosine} for index, cosine in enumerate(cosines.tolist())
    ]
    return json_response({**answer, "id": new_id("score-"), "created": created, "data": scores})


async def _embedded(service: Service, body: dict[str, Any]) -> dict[str, Any]:
    rows = await service.rows(EMBEDDINGS, one_prompt_each(body, "input"))
    online = OnlineRequest(service, rows)
    outputs = await online.outputs()

    def listed() -> dict[str, Any]:
        results = [FinishedRow(row, result_body(output)) for row, output in zip(rows, outputs, strict=True)]
        return embedding_list(results, online.options)

    return await asyncio.to_thread(listed)


def _texts(body: dict[str, Any], name: str) -> list[str]:
    value = body.get(name)
    texts: list[Any] = value if isinstance(value, list) else [value]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise bad_request(f"{name}={shown(value)}: must be a text or a list of texts", name)
    return texts
