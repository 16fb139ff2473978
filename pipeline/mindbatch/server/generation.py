"""Generates the answer of one request, as one object or as the chunks of a stream."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
from starlette.responses import Response

from mindbatch.dataset.openai_request import CHAT
from mindbatch.dataset.rows import DataRow
from mindbatch.engine.request import PROMPT_STAGE, RequestOutput, StreamEvent, result_body
from mindbatch.io.amounts import today
from mindbatch.message_formats.call_text import Content, MessageSegment, Reasoning, ToolCall
from mindbatch.message_formats.parser import MessageParser
from mindbatch.run.openai_response import (
    call_id,
    chat_logprobs,
    completion,
    completion_logprobs,
    error_code,
    notes_at_end,
    parser_of,
    reason_with_calls,
    tool_call,
    usage,
)
from mindbatch.run.result_rows import FinishedRow, OutputOptions
from mindbatch.server.answers import Choices, refuse_many_logprobs
from mindbatch.server.request_tokens import counted
from mindbatch.server.requests import ApiError
from mindbatch.server.service import Service

Item = StreamEvent | RequestOutput
_MAX_WAITING = 2_000_000
"""Log-probabilities of a stream that may wait for a slow client: about 200 MB."""


@dataclass
class OnlineRequest:
    """The rows of one request, which differ in their prompts only.

    echo: completions repeat the prompt.
    """

    service: Service
    rows: list[DataRow]
    echo: bool = False
    prompt_tokens: int = 0
    options: OutputOptions = field(init=False)

    def __post_init__(self) -> None:
        self.options = replace(self.service.options(self.rows[0]), fingerprint=uuid.uuid4().hex)

    @property
    def is_chat(self) -> bool:
        return self.rows[0].extra.get("endpoint") == CHAT

    async def items(self, *, with_events: bool = True) -> AsyncGenerator[Item, None]:
        """Yields events and outputs of the engine, whose keys are the positions of the rows.

        Raises:
            ApiError: a prompt is refused, or its generation fails.
        """
        service, started, is_first = self.service, time.perf_counter(), True
        params = await asyncio.to_thread(service.params, self.rows[0])
        run = await service.engine.submit(
            ((row.prompt(today()), params) for row in self.rows),
            with_events=with_events,
            max_waiting=_MAX_WAITING if with_events else None,
        )
        refuse(run.refused)
        if not with_events:
            refuse_many_logprobs(run.requests, service.llm.seq_length)
        self.prompt_tokens = sum(len(request.prompt_token_ids) for request in run.requests)
        tokens = counted()
        tokens.prompt += self.prompt_tokens
        ends = {request.key: self._prompt_end(request.prompt_token_ids) for request in run.requests}
        self.options = replace(self.options, prompt_end=lambda row: ends[row.key])
        async with aclosing(run) as items:
            async for item in items:
                if is_first and isinstance(item, StreamEvent):
                    service.metrics.first_token(time.perf_counter() - started)
                    is_first = False
                if isinstance(item, StreamEvent):
                    tokens.generated += len(item.token_ids)
                elif not with_events:
                    tokens.generated += sum(len(completed.token_ids) for completed in item.outputs)
                if isinstance(item, RequestOutput):
                    refuse([item])
                    service.metrics.finished(item)
                yield item

    def _prompt_end(self, token_ids: tuple[int, ...]) -> str:
        tokenizer = self.service.llm.tokenizer
        format = self.options.message_format
        thinks = format is not None and format.reasoning_opening
        return tokenizer.end_of(token_ids) if tokenizer and thinks else ""

    async def outputs(self) -> list[RequestOutput]:
        """Returns the outputs in the order of the rows."""
        async with aclosing(self.items(with_events=False)) as items:
            outputs = [item async for item in items if isinstance(item, RequestOutput)]
        return sorted(outputs, key=lambda output: int(output.key))

    async def answer(self) -> Response:
        """Returns the completion object, with the choices of all prompts.

        Raises:
            ApiError: see `items`; or the answer is too large.
        """
        head: dict[str, Any] = {}
        choices, tokens = Choices(), [0, 0]

        def add(output: RequestOutput) -> None:
            """Serialises a row's choices at once, because the output takes many times as much memory."""
            position = int(output.key)
            answer = self.completion_of(self.rows[position], output)
            choices.add(position, answer.pop("choices"))
            used = answer.pop("usage")
            tokens[0] += used["prompt_tokens"]
            tokens[1] += used["completion_tokens"]
            if position == 0:
                head.update(answer)

        async with aclosing(self.items(with_events=False)) as items:
            async for item in items:
                if isinstance(item, RequestOutput):
                    await asyncio.to_thread(add, item)
        head |= {"usage": usage(*tokens), "system_fingerprint": self.service.fingerprint}
        return await asyncio.to_thread(choices.response, head)

    def completion_of(self, row: DataRow, output: RequestOutput) -> dict[str, Any]:
        body = result_body(output)
        answer = completion(FinishedRow(row, body), self.options)
        if self.echo:
            for choice, generation in zip(answer["choices"], body["generations"], strict=True):
                choice |= self._echoed(row, output, generation)
            answer.pop("prompt_logprobs", None)
        return answer

    def _echoed(self, row: DataRow, output: RequestOutput, generation: Mapping[str, Any]) -> dict[str, Any]:
        """Returns text and log-probabilities of the prompt and its completion together."""
        whole = {
            "token_ids": [*output.prompt_token_ids, *generation["token_ids"]],
            "logprobs": None
            if output.prompt_logprobs is None
            else [*output.prompt_logprobs, *(generation.get("logprobs") or [])],
        }
        return {
            "text": self._prompt_text(row, output) + generation["text"],
            "logprobs": completion_logprobs(whole, 0, self.service.token_bytes),
        }

    def _prompt_text(self, row: DataRow, output: RequestOutput) -> str:
        tokenizer = self.service.llm.tokenizer
        text = row.content.get("text")
        if text is None:
            text = "" if tokenizer is None else tokenizer.decode(output.prompt_token_ids)
        return str(text)


def refuse(outputs: Iterable[RequestOutput]) -> None:
    """Raises an ApiError with the errors of outputs that failed."""
    errors = [output.error.removeprefix("request:1: ") for output in outputs if output.error is not None]
    if errors:
        raise ApiError(400, errors, error_code(PROMPT_STAGE, "; ".join(errors)))


class Stream:
    """Writes the chunks of an answer as server-sent events.

    with_usage: a last chunk has the usage. always: every chunk has the usage so far.
    """

    def __init__(self, generation: OnlineRequest, *, with_usage: bool, always: bool = False) -> None:
        self._generation = generation
        self._with_usage, self._always = with_usage, always
        self._num_generated = 0
        self._num_choices = generation.service.num_choices(generation.rows[0])
        self._choices: dict[int, _Choice] = {}

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yields the lines of the stream. Raises ApiError before the first line."""
        async with aclosing(self._generation.items()) as items:
            async for item in items:
                if isinstance(item, StreamEvent):
                    self._num_generated += len(item.token_ids)
                    chunks = self._choice(item.key, item.index).added(item)
                else:
                    chunks = self._finish(item)
                for choice in chunks:
                    yield self._event([choice])
        if self._with_usage:
            yield self._event([])
        yield b"data: [DONE]\n\n"

    def _choice(self, key: str, index: int) -> _Choice:
        position = int(key) * self._num_choices + index
        if position not in self._choices:
            row = self._generation.rows[int(key)]
            self._choices[position] = _Choice(self._generation, row, index, position)
        return self._choices[position]

    def _finish(self, output: RequestOutput) -> Iterable[dict[str, Any]]:
        for completed in output.outputs:
            yield from self._choice(output.key, completed.index).finished(completed.finish_reason)

    def _event(self, choices: list[dict[str, Any]]) -> bytes:
        generation = self._generation
        kind = "chat.completion.chunk" if generation.is_chat else "text_completion"
        chunk: dict[str, Any] = {
            "id": ("chatcmpl-" if generation.is_chat else "cmpl-") + generation.options.fingerprint,
            "object": kind,
            "created": generation.options.created,
            "model": generation.options.model,
            "system_fingerprint": generation.service.fingerprint,
            "choices": choices,
        }
        if self._with_usage or self._always:
            has_usage = self._always or not choices
            chunk["usage"] = usage(generation.prompt_tokens, self._num_generated) if has_usage else None
        return sse(chunk)


class _Choice:
    """Turns the text of one choice into chunks: role, content, reasoning and tool calls."""

    def __init__(self, generation: OnlineRequest, row: DataRow, index: int, position: int) -> None:
        self._generation, self._row, self._index, self._position = generation, row, index, position
        self._parser: MessageParser | None = parser_of(row, generation.options)
        self._num_calls = 0
        self._notes: list[str] = []
        self._has_role = False
        self._unsent: dict[str, list[Any]] = {"token_ids": [], "logprobs": []}
        self._previous: int | None = None  # the token before the unsent ones
        self._offset = len(row.content.get("text") or "")

    def added(self, event: StreamEvent) -> Iterable[dict[str, Any]]:
        """Returns chunks for the event's text, with the log-probabilities of the tokens up to it."""
        if event.logprobs is not None:
            self._unsent["token_ids"] += event.token_ids
            self._unsent["logprobs"] += event.logprobs
        text = event.text
        if not self._generation.is_chat:
            return [self._chunk(self._logprobs(), text=text)] if text else []
        segments: list[MessageSegment] = [Content(text)] if text else []
        if self._parser is not None:
            segments = self._parser.push(text)
        chunks = [self._chunk(delta=delta) for delta in map(self._delta_of, segments) if delta]
        if chunks:
            chunks[-1]["logprobs"] = self._logprobs()
        return self._with_role(chunks)

    def finished(self, reason: str) -> Iterable[dict[str, Any]]:
        """Returns the last chunks; the final one notes why text that looks like a call stayed text."""
        logprobs = self._logprobs()
        if not self._generation.is_chat:
            return [self._chunk(logprobs, reason, text="")]
        segments = [] if self._parser is None else self._parser.finish()
        chunks = [self._chunk(delta=delta) for delta in map(self._delta_of, segments) if delta]
        self._notes += notes_at_end(self._parser)
        last = {"parse_errors": self._notes} if self._notes else {}
        reason = reason_with_calls(reason) if self._num_calls else reason
        return self._with_role([*chunks, self._chunk(logprobs, reason, delta=last)])

    def _logprobs(self) -> dict[str, Any] | None:
        """Takes the log-probabilities that have not been sent yet; None if there are none."""
        unsent, service = self._unsent, self._generation.service
        if not unsent["token_ids"]:
            return None
        if self._generation.is_chat:
            count = self._row.overrides.get("logprobs", self._generation.options.logprobs) or 0
            part = chat_logprobs(unsent, count, service.token_bytes, self._previous)
        else:
            part = completion_logprobs(unsent, self._offset, service.token_bytes, self._previous)
            assert part is not None
            self._offset = part["text_offset"][-1] + len(part["tokens"][-1])
        self._previous = unsent["token_ids"][-1]
        self._unsent = {"token_ids": [], "logprobs": []}
        return part

    def _with_role(self, chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if chunks and not self._has_role:
            self._has_role = True
            return [self._chunk(delta={"role": "assistant", "content": ""}), *chunks]
        return chunks

    def _delta_of(self, segment: MessageSegment) -> dict[str, Any]:
        if isinstance(segment, Content):
            return {"content": segment.text}
        if isinstance(segment, Reasoning):
            return {"reasoning_content": segment.text}
        if isinstance(segment, ToolCall):
            index, self._num_calls = self._num_calls, self._num_calls + 1
            name = call_id(self._row, self._index, index, self._generation.options)
            return {"tool_calls": [{"index": index, **tool_call(segment, name)}]}
        self._notes.append(segment.reason)
        return {}

    def _chunk(
        self, logprobs: dict[str, Any] | None = None, reason: str | None = None, **content: Any
    ) -> dict[str, Any]:
        return {"index": self._position, **content, "logprobs": logprobs, "finish_reason": reason}


def sse(content: Mapping[str, Any], event: str = "") -> bytes:
    """Encodes a server-sent event, with the name `event` unless that is empty."""
    name = f"event: {event}\n".encode() if event else b""
    return name + b"data: " + orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS) + b"\n\n"
