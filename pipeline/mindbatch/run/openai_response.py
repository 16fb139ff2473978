"""Results and errors as the lines of OpenAI's batch output and error files.

The shapes are those of OpenAI's API reference: the request output object of a batch, and in it a chat
completion or a (text) completion object.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, BinaryIO, NamedTuple

from mindbatch.dataset.rows import DataRow, RowFailure
from mindbatch.engine.request import EMBEDDING, num_generated_tokens
from mindbatch.message_formats.call_text import ParsedMessage, ToolCall
from mindbatch.message_formats.formats import forced_call
from mindbatch.message_formats.parser import MessageParser
from mindbatch.prompts.token_bytes import TokenBytes
from mindbatch.run.result_rows import (
    FailureWriter,
    FinishedRow,
    OutputOptions,
    RowWriter,
    identifier,
    json_lines,
)


def parser_of(row: DataRow, options: OutputOptions) -> MessageParser | None:
    """Returns the parser of one output of a row; None where the model's messages are plain text."""
    format = options.message_format
    if row.extra.get("call_is_forced"):
        format = forced_call(format)
    if format is None or "messages" not in row.content:
        return None
    in_reasoning = bool(format.reasoning_opening) and format.starts_in_reasoning(options.prompt_end(row))
    has_one_call = bool(row.extra.get("has_one_call"))
    tools = row.content.get("tools") or ()
    return format.parser(in_reasoning=in_reasoning, tools=tools, has_one_call=has_one_call)


def notes_at_end(parser: MessageParser | None) -> list[str]:
    """Returns a note if a message ended within its reasoning."""
    is_within = parser is not None and parser.is_within_reasoning
    return ["the output ended within the reasoning, before its closing tag"] if is_within else []


def chat_message(
    row: DataRow, generation: Mapping[str, Any], options: OutputOptions
) -> tuple[dict[str, Any], str]:
    """Returns the message of one output, and its finish reason.

    content is None for tool calls alone; reasoning_content, tool_calls and parse_errors (reasons why text
    that looks like a call stayed text) are set if the message has any.
    """
    message: dict[str, Any] = {"role": "assistant", "content": generation["text"], "refusal": None}
    reason: str = generation["finish_reason"]
    parser = parser_of(row, options)
    if parser is None:
        return message, reason
    parsed = ParsedMessage.from_segments(parser.push(generation["text"]) + parser.finish())
    message["content"] = parsed.content
    if parsed.reasoning is not None:
        message["reasoning_content"] = parsed.reasoning
    if parsed.tool_calls:
        message["tool_calls"] = [
            tool_call(call, call_id(row, generation["index"], number, options))
            for number, call in enumerate(parsed.tool_calls)
        ]
        reason = reason_with_calls(reason)
    elif parsed.content is None:
        message["content"] = ""
    if notes := [*parsed.notes, *notes_at_end(parser)]:
        message["parse_errors"] = notes
    return message, reason


def reason_with_calls(reason: str) -> str:
    return "tool_calls" if reason == "stop" else reason


def tool_call(call: ToolCall, name: str) -> dict[str, Any]:
    """Returns a tool call object. name: its identifier."""
    return {
        "id": name,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def call_id(row: DataRow, index: int, number: int, options: OutputOptions) -> str:
    """Returns the identifier of a call, from its run, row, output and number."""
    return identifier("call_", f"{row.key}/{index}/{number}", options)


UNLIKELY = -9999.0
"""Log-probability that OpenAI writes for a token that is as good as impossible; JSON has no infinity."""


class TokenName(NamedTuple):
    """Text that a token is called by, and its bytes.

    bytes: what it adds to a text; None where that is not known.
    is_part: it ends within a character, and the name shows its bytes like \\xe4\\xbb.
    """

    text: str
    bytes: bytes | None
    is_part: bool = False


def token_name(token_bytes: TokenBytes | None, token_id: int, previous: int | None) -> TokenName:
    """Returns the text by which OpenAI's formats name a token.

    token_bytes: what a token adds to a text; None where there is no tokenizer, then a token is named by its
        number, like token_id:17.
    previous: the token before it; None at the beginning of a generation.
    """
    # A generation follows its prompt, so even its first token stands inside a text, where a leading space
    # is kept. Which token comes before does not matter for that: the token itself serves.
    before = token_id if previous is None else previous
    added = None if token_bytes is None else token_bytes(token_id, before)
    if added is None:
        return TokenName(f"token_id:{token_id}", None)
    try:
        return TokenName(added.decode(), added)
    except UnicodeDecodeError:
        return TokenName("".join(f"\\x{byte:02x}" for byte in added), added, is_part=True)


class _TokenLogprobs(NamedTuple):
    """A token, the token before it, its log-probability, and those of the likeliest tokens.

    The first token of a prompt has none, as it follows no token.
    """

    token_id: int
    previous: int | None
    logprob: float | None
    likely: dict[int, float]


def chat_logprobs(
    generation: Mapping[str, Any], count: int, token_bytes: TokenBytes | None, previous: int | None = None
) -> dict[str, Any] | None:
    """Returns the `logprobs` of a chat choice, with the `count` likeliest tokens of each position; None
    unless requested.

    previous: the generation's token before these, if they are a part of it.
    """
    if generation.get("logprobs") is None:
        return None
    content = []
    for token in _token_logprobs(generation, previous):
        entry = _chat_token(token_bytes, token.token_id, token.previous, token.logprob)
        entry["top_logprobs"] = [
            _chat_token(token_bytes, token_id, token.previous, logprob)
            for token_id, logprob in islice(token.likely.items(), count)
        ]
        content.append(entry)
    return {"content": content, "refusal": None}


def completion_logprobs(
    generation: Mapping[str, Any], offset: int, token_bytes: TokenBytes | None, previous: int | None = None
) -> dict[str, Any] | None:
    """Returns the `logprobs` of a completion's choice; None unless requested.

    offset: characters before these tokens; text_offset counts from the prompt's beginning.
    previous: the generation's token before these, if they are a part of it.
    """
    if generation.get("logprobs") is None:
        return None
    tokens, offsets = [], []
    token_logprobs, top_logprobs = [], []
    for token in _token_logprobs(generation, previous):
        name = _completion_name(token.token_id, token.previous, token_bytes)
        tokens.append(name)
        offsets.append(offset)
        token_logprobs.append(token.logprob)
        top_logprobs.append(_completion_likely(token, token_bytes) or None)
        offset += len(name)
    return {
        "tokens": tokens,
        "token_logprobs": token_logprobs,
        "top_logprobs": top_logprobs,
        "text_offset": offsets,
    }


def _token_logprobs(generation: Mapping[str, Any], previous: int | None) -> Iterator[_TokenLogprobs]:
    for token_id, logprobs in zip(generation["token_ids"], generation["logprobs"], strict=True):
        # Numbers are texts as keys of JSON, in which form the ledger gives them back.
        likely = {int(key): max(logprob, UNLIKELY) for key, logprob in (logprobs or {}).items()}
        yield _TokenLogprobs(token_id, previous, likely.get(token_id), likely)
        previous = token_id


def _chat_token(
    token_bytes: TokenBytes | None, token_id: int, previous: int | None, logprob: float | None
) -> dict[str, Any]:
    name = token_name(token_bytes, token_id, previous)
    return {"token": name.text, "logprob": logprob, "bytes": name.bytes and list(name.bytes)}


def _completion_likely(token: _TokenLogprobs, token_bytes: TokenBytes | None) -> dict[str, float]:
    """Returns log-probabilities by name; of several tokens with one name, that of the likeliest."""
    named: dict[str, float] = {}
    for token_id, logprob in token.likely.items():
        named.setdefault(_completion_name(token_id, token.previous, token_bytes), logprob)
    return named


def _completion_name(token_id: int, previous: int | None, token_bytes: TokenBytes | None) -> str:
    """Completions have no list of bytes; half a character is marked in its name."""
    name = token_name(token_bytes, token_id, previous)
    return f"bytes:{name.text}" if name.is_part else name.text


_ERROR_CODES = {"read": "invalid_line", "row": "invalid_request", "prompt": "invalid_value"}
TOO_LONG = "context_length_exceeded"
_LENGTH = re.compile(
    r"tokens and prompt and output together may have|tokens; at most \d+ can be taken|"
    r"far more than \d+ tokens"
)
_NEVER_TRIED = {"cancelled": "batch_cancelled", "expired": "batch_expired", "failed": "batch_failed"}


def response_lines(file: BinaryIO, options: OutputOptions) -> RowWriter:
    """Writes the output file: {id, custom_id, response, error}.

    Every identifier follows from the run's settings and the row's key, and `created` is when the run was
    begun: a resumed run writes what an unbroken one does. Where the configuration asks for token ids, choices
    have `token_ids`; where a row asks for log-probabilities of its prompt, the completion has
    `prompt_logprobs`; OpenAI knows neither.
    """

    def as_json(row: FinishedRow) -> Mapping[str, Any]:
        key, body = row.row.key, completion(row, options)
        return _line(key, key, options, _response(key, options, 200, body))

    return json_lines(file, as_json)


def refusal_lines(file: BinaryIO, options: OutputOptions) -> FailureWriter:
    """Writes the error file in the same form: a refused request has a response with an HTTP status and an
    error in its body; a line that is no request at all has no response and `error` is set."""

    def as_json(row: RowFailure) -> Mapping[str, Any]:
        code = error_code(row.stage, row.reason)
        message = f"{row.location}: {row.reason}"
        if row.key is None or row.stage in _NEVER_TRIED:
            error = {"code": _NEVER_TRIED.get(row.stage, code or "server_error"), "message": message}
            return _line(row.key, row.key or row.location, options, error=error)
        detail = {
            "message": message,
            "type": "invalid_request_error" if code else "server_error",
            "param": None,
            "code": code,
        }
        response = _response(row.key, options, 400 if code else 500, {"error": detail})
        return _line(row.key, row.key, options, response)

    return json_lines(file, as_json)


def error_code(stage: str, reason: str) -> str | None:
    """Returns the code of an error; None for the program's own. Clients act on that of a too long prompt."""
    return TOO_LONG if stage == "prompt" and _LENGTH.search(reason) else _ERROR_CODES.get(stage)


def _response(name: str, options: OutputOptions, status: int, body: Mapping[str, Any]) -> dict[str, Any]:
    return {"status_code": status, "request_id": identifier("req_", name, options), "body": body}


def _line(
    custom_id: str | None,
    name: str,
    options: OutputOptions,
    response: Mapping[str, Any] | None = None,
    error: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    return {
        "id": identifier("batch_req_", name, options),
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }


def completion(row: FinishedRow, options: OutputOptions) -> dict[str, Any]:
    """Returns a chat completion object where the prompt was a conversation, else one of text, or
    embeddings."""
    if row.body["generations"][0].get(EMBEDDING) is not None:
        return embeddings([row], options)
    is_chat = "messages" in row.row.content
    choice = _chat_choice if is_chat else _text_choice
    generations = row.body["generations"]
    choices = [choice(row, generation, options) for generation in generations]
    if options.token_ids:
        for written, generation in zip(choices, generations, strict=True):
            written["token_ids"] = generation["token_ids"]
    answer = {
        "id": identifier("chatcmpl-" if is_chat else "cmpl-", row.row.key, options),
        "object": "chat.completion" if is_chat else "text_completion",
        "created": options.created,
        "model": row.row.extra.get("model") or options.model,
        "choices": choices,
        "usage": usage(row.body["prompt_tokens"], num_generated_tokens(generations)),
        "system_fingerprint": f"fp_{options.fingerprint}",
    }
    if row.body.get("prompt_logprobs") is not None:
        answer["prompt_logprobs"] = row.body["prompt_logprobs"]
    return answer


def embeddings(rows: Sequence[FinishedRow], options: OutputOptions) -> dict[str, Any]:
    """Returns a list of embedding objects, one of each row; at least one."""
    tokens = sum(row.body["prompt_tokens"] for row in rows)
    vectors = [generation[EMBEDDING] for row in rows for generation in row.body["generations"]]
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": vector}
            for index, vector in enumerate(vectors)
        ],
        "model": rows[0].row.extra.get("model") or options.model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def _chat_choice(row: FinishedRow, generation: Mapping[str, Any], options: OutputOptions) -> dict[str, Any]:
    count = row.row.overrides.get("logprobs", options.logprobs)
    message, reason = chat_message(row.row, generation, options)
    return {
        "index": generation["index"],
        "message": message,
        "logprobs": chat_logprobs(generation, count or 0, options.token_bytes),
        "finish_reason": reason,
    }


def _text_choice(row: FinishedRow, generation: Mapping[str, Any], options: OutputOptions) -> dict[str, Any]:
    offset = len(row.row.content.get("text") or "")
    return {
        "text": generation["text"],
        "index": generation["index"],
        "logprobs": completion_logprobs(generation, offset, options.token_bytes),
        "finish_reason": generation["finish_reason"],
    }


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
