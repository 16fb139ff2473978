"""Results and errors as the lines of OpenAI's batch output and error files.

The shapes are those of OpenAI's API reference: the request output object of a batch, and in it a chat
completion or a (text) completion object.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, BinaryIO

from mindbatch.dataset.rows import RowFailure
from mindbatch.run.outputs.jsonl import JsonLines
from mindbatch.run.outputs.openai_logprobs import TokenNames, chat_logprobs, completion_logprobs
from mindbatch.run.outputs.rows import FinishedRow, OutputOptions, num_generated_tokens

_ERROR_CODES = {"read": "invalid_line", "row": "invalid_request", "prompt": "invalid_prompt"}
_ID_BYTES = 16


def response_lines(file: BinaryIO, options: OutputOptions) -> JsonLines:
    """The output file: {id, custom_id, response, error}.

    Every identifier follows from the run's settings and the row's key, and `created` is when the run was
    begun: a resumed run writes what an unbroken one does. Where the configuration asks for token ids, choices
    have `token_ids`; where a row asks for log-probabilities of its prompt, the completion has
    `prompt_logprobs`; OpenAI knows neither.
    """
    names = TokenNames(options.token_bytes)

    def as_json(row: FinishedRow) -> Mapping[str, Any]:
        completion = _completion(row, options, names)
        return _line(row.key, row.key, options, {"status_code": 200, "body": completion}, None)

    return JsonLines(file, as_json)


def refusal_lines(file: BinaryIO, options: OutputOptions) -> JsonLines:
    """The error file, in the same form: a refused request has a response with an HTTP status and an error in
    its body; a line that is no request at all has no response and `error` is set."""

    def as_json(row: RowFailure) -> Mapping[str, Any]:
        code = _ERROR_CODES.get(row.stage)
        message = f"{row.place}: {row.reason}"
        if row.key is None:
            error = {"code": code or "server_error", "message": message}
            return _line(None, row.place, options, None, error)
        detail = {
            "message": message,
            "type": "invalid_request_error" if code else "server_error",
            "param": None,
            "code": code,
        }
        response = {"status_code": 400 if code else 500, "body": {"error": detail}}
        return _line(row.key, row.key, options, response, None)

    return JsonLines(file, as_json)


def _line(
    custom_id: str | None,
    name: str,
    options: OutputOptions,
    response: Mapping[str, Any] | None,
    error: Mapping[str, Any] | None,
) -> dict[str, Any]:
    if response is not None:
        status, body = response["status_code"], response["body"]
        response = {"status_code": status, "request_id": _identifier("req_", name, options), "body": body}
    return {
        "id": _identifier("batch_req_", name, options),
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }


def _identifier(prefix: str, name: str, options: OutputOptions) -> str:
    """A name of its own for each kind of object, run and row."""
    digest = blake2b(digest_size=_ID_BYTES)
    for part in (prefix, options.fingerprint, name):
        digest.update(len(part.encode()).to_bytes(8, "little") + part.encode())
    return prefix + digest.hexdigest()


def _completion(row: FinishedRow, options: OutputOptions, names: TokenNames) -> dict[str, Any]:
    """A chat completion object where the prompt was a conversation, else a text completion object."""
    is_chat = "messages" in row.row.content
    choice = _chat_choice if is_chat else _text_choice
    generations = row.body["generations"]
    completion = {
        "id": _identifier("chatcmpl-" if is_chat else "cmpl-", row.key, options),
        "object": "chat.completion" if is_chat else "text_completion",
        "created": options.created,
        "model": row.row.extra.get("model") or options.model,
        "choices": [
            choice(row, generation, options, names) | _token_ids(generation, options)
            for generation in generations
        ],
        "usage": _usage(row.body["prompt_tokens"], num_generated_tokens(generations)),
        "system_fingerprint": f"fp_{options.fingerprint}",
    }
    if row.body.get("prompt_logprobs") is not None:
        completion["prompt_logprobs"] = row.body["prompt_logprobs"]
    return completion


def _chat_choice(
    row: FinishedRow, generation: Mapping[str, Any], options: OutputOptions, names: TokenNames
) -> dict[str, Any]:
    asked = row.row.overrides.get("logprobs", options.logprobs)
    return {
        "index": generation["index"],
        "message": {"role": "assistant", "content": generation["text"], "refusal": None},
        "logprobs": chat_logprobs(generation, asked or 0, names),
        "finish_reason": generation["finish_reason"],
    }


def _text_choice(
    row: FinishedRow, generation: Mapping[str, Any], options: OutputOptions, names: TokenNames
) -> dict[str, Any]:
    return {
        "text": generation["text"],
        "index": generation["index"],
        "logprobs": completion_logprobs(generation, len(row.row.content.get("text") or ""), names),
        "finish_reason": generation["finish_reason"],
    }


def _token_ids(generation: Mapping[str, Any], options: OutputOptions) -> dict[str, Any]:
    return {"token_ids": generation["token_ids"]} if options.token_ids else {}


def _usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
