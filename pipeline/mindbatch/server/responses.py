"""Serves /v1/responses: text, function calls, and conversations kept within this process.

The input is translated to the body of a chat; keys that a chat shares are checked with its row.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from mindbatch.dataset.openai_request import CHAT
from mindbatch.engine.request import RequestOutput, StreamEvent, num_generated_tokens, result_body
from mindbatch.io.error_lines import did_you_mean, shown
from mindbatch.message_formats.call_text import Content, MessageSegment, Reasoning, ToolCall, Unparsed
from mindbatch.prompts.messages import MAX_MESSAGES, MAX_TOOLS
from mindbatch.run.openai_response import notes_at_end, parser_of
from mindbatch.server.completions import flag, json_response, streamed
from mindbatch.server.generation import OnlineRequest, sse
from mindbatch.server.records import new_id
from mindbatch.server.requests import bad_request, json_body, refuse_longer, refuse_unknown, while_connected
from mindbatch.server.service import Service

Event = dict[str, Any]
_PARTS = {"message": "output_text", "reasoning": "reasoning_text"}
_LOGPROBS: dict[str, dict[str, Any]] = {"message": {"logprobs": []}, "reasoning": {}}


@dataclass
class _Answer:
    """Generates one response. messages: the conversation before it, without instructions."""

    name: str
    generation: OnlineRequest
    body: Mapping[str, Any]
    messages: list[dict[str, Any]]
    is_stored: bool
    reasoning_tokens: int = 0

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yields the events of the stream; the last one has the complete response."""
        items, output, parser, has_started = _OutputItems(), None, None, False
        async with aclosing(self.generation.items()) as arriving:
            async for item in arriving:
                if not has_started:  # the prompt was accepted, and its end is known to the parser
                    has_started, parser = True, parser_of(self.generation.rows[0], self.generation.options)
                    for kind in ("created", "in_progress"):
                        yield items.event(kind, response=self._object(items, None))
                if isinstance(item, StreamEvent):
                    segments: list[MessageSegment] = (
                        parser.push(item.text) if parser else [Content(item.text)]
                    )
                    if any(isinstance(segment, Reasoning) for segment in segments):
                        self.reasoning_tokens += len(item.token_ids)
                else:
                    output = item
                    segments = parser.finish() if parser else []
                    items.notes += notes_at_end(parser)
                for segment in segments:
                    for event in items.add(segment):
                        yield event
        for event in items.close(_status(output)):
            yield event
        whole = self._object(items, output)
        if self.is_stored:
            service = self.generation.service
            service.conversations.keep(self.name, [*self.messages, *items.messages()])
        yield items.event(str(whole["status"]), response=whole)

    async def whole(self) -> dict[str, Any]:
        async with aclosing(self.events()) as events:
            *_, last = [event async for event in events]
        response: dict[str, Any] = last["response"]
        return response

    async def lines(self) -> AsyncGenerator[bytes, None]:
        async with aclosing(self.events()) as events:
            async for event in events:
                yield sse(event, event["type"])

    def _object(self, items: _OutputItems, output: RequestOutput | None) -> dict[str, Any]:
        status = _status(output)
        body, used = self.body, None if output is None else _usage(output, self.reasoning_tokens)
        return {
            "id": self.name,
            "object": "response",
            "created_at": self.generation.options.created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "error": None,
            "model": self.generation.options.model,
            "output": items.items,
            "usage": used,
            "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
            "tool_choice": body.get("tool_choice") or "auto",
            "tools": body.get("tools") or [],
            "text": body.get("text") or {"format": {"type": "text"}},
            "truncation": "disabled",
            **{name: body.get(name) for name in _REPEATED},
            **({"parse_errors": items.notes} if items.notes else {}),
        }


_REPEATED = (
    *("instructions", "max_output_tokens", "metadata", "previous_response_id", "reasoning", "temperature"),
    *("top_p", "user"),
)
"""Keys of a request that its response repeats."""
_MAX_REPEATED_BYTES = 8 << 20
"""Size of repeated keys; a response is written several times during its stream."""


def _status(output: RequestOutput | None) -> str:
    if output is None:
        return "in_progress"
    return "incomplete" if output.outputs[0].finish_reason == "length" else "completed"


def _usage(output: RequestOutput, reasoning_tokens: int) -> dict[str, Any]:
    prompt = len(output.prompt_token_ids)
    generated = num_generated_tokens(result_body(output)["generations"])
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": output.num_cached_tokens, "cache_write_tokens": 0},
        "output_tokens": generated,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": prompt + generated,
    }


class _OutputItems:
    """Collects the output items of one response in the order of their segments."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self._numbers = itertools.count()
        self._open: str | None = None

    def event(self, kind: str, **fields: Any) -> Event:
        """Makes an event with its number in the stream."""
        return {"type": f"response.{kind}", "sequence_number": next(self._numbers), **fields}

    def add(self, segment: MessageSegment) -> Iterator[Event]:
        """Adds a segment and yields its events; a note on text that is not a call has none."""
        if isinstance(segment, Unparsed):
            self.notes.append(segment.reason)
        elif isinstance(segment, ToolCall):
            yield from self.close()
            yield from self._call(segment)
        elif isinstance(segment, Content | Reasoning) and segment.text:
            kind = "message" if isinstance(segment, Content) else "reasoning"
            if self._open != kind:
                yield from self.close()
                yield from self._begin(kind)
            part = self.items[-1]["content"][0]
            part["text"] += segment.text
            yield self.event(
                f"{_PARTS[kind]}.delta", **self._location(), delta=segment.text, **_LOGPROBS[kind]
            )

    def close(self, status: str = "completed") -> Iterator[Event]:
        """Ends the open item, if there is one."""
        if (kind := self._open) is None:
            return
        self._open = None
        item = self.items[-1]
        part = item["content"][0]
        yield self.event(f"{_PARTS[kind]}.done", **self._location(), text=part["text"], **_LOGPROBS[kind])
        yield self.event("content_part.done", **self._location(), part=part)
        item["status"] = status
        yield self._item("done")

    def _begin(self, kind: str) -> Iterator[Event]:
        self._open = kind
        prefix = "msg_" if kind == "message" else "rs_"
        own: dict[str, Any] = {"role": "assistant"} if kind == "message" else {"summary": []}
        item: Event = {"id": new_id(prefix), "type": kind, "status": "in_progress", "content": [], **own}
        self.items.append(item)
        yield self._item("added")
        part: dict[str, Any] = {"type": _PARTS[kind], "text": ""}
        item["content"] = [part | ({"annotations": [], "logprobs": []} if kind == "message" else {})]
        yield self.event("content_part.added", **self._location(), part=item["content"][0])

    def _call(self, call: ToolCall) -> Iterator[Event]:
        item = {
            "id": new_id("fc_"),
            "type": "function_call",
            "status": "in_progress",
            "call_id": new_id("call_"),
            "name": call.name,
            "arguments": "",
        }
        self.items.append(item)
        yield self._item("added")
        location = {"item_id": item["id"], "output_index": len(self.items) - 1}
        yield self.event("function_call_arguments.delta", **location, delta=call.arguments)
        yield self.event("function_call_arguments.done", **location, name=call.name, arguments=call.arguments)
        item |= {"arguments": call.arguments, "status": "completed"}
        yield self._item("done")

    def _item(self, stage: str) -> Event:
        return self.event(f"output_item.{stage}", output_index=len(self.items) - 1, item=dict(self.items[-1]))

    def _location(self) -> dict[str, Any]:
        return {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1, "content_index": 0}

    def messages(self) -> list[dict[str, Any]]:
        texts = {
            kind: "".join(item["content"][0]["text"] for item in self.items if item["type"] == kind)
            for kind in _PARTS
        }
        calls = [_chat_call(item) for item in self.items if item["type"] == "function_call"]
        content = {} if calls and not texts["message"] else {"content": texts["message"]}
        return [{"role": "assistant", **content, **({"tool_calls": calls} if calls else {})}]


async def create(request: Request) -> Response:
    service: Service = request.app.state.service
    body = await json_body(request)
    stream = flag(body, "stream")
    is_stored = flag(body, "store") if body.get("store") is not None else True
    chat = await asyncio.to_thread(_chat_of, service, body)
    if (count := chat.get("n")) not in (None, 1):
        raise bad_request(f"n={shown(count)}: a response has one output", "n")
    conversation = chat["messages"][1:] if body.get("instructions") else chat["messages"]
    [row] = await service.rows(CHAT, [chat])
    answer = _Answer(new_id("resp_"), OnlineRequest(service, [row]), body, conversation, is_stored)
    if stream:
        return await streamed(service, answer.lines())
    return json_response(await while_connected(request, answer.whole()))


def _chat_of(service: Service, body: dict[str, Any]) -> dict[str, Any]:
    repeated = {name: body.get(name) for name in (*_REPEATED, "tool_choice", "tools", "text")}
    if (size := len(orjson.dumps(repeated))) > _MAX_REPEATED_BYTES:
        names = ", ".join(name for name, value in repeated.items() if value is not None)
        raise bad_request(f"{names}: {size} bytes, repeated in the response; at most {_MAX_REPEATED_BYTES}")
    previous = body.get("previous_response_id")
    return chat_body(body, [] if previous is None else service.conversations.find(previous))


_TEXT_PARTS = ("input_text", "output_text", "text")
_ITEM_TYPES = ("message", "function_call", "function_call_output", "reasoning")
_SAME_MEANING = {"max_output_tokens": "max_completion_tokens"}
_HERE = ("input", "instructions", "text", "reasoning", "tools", "previous_response_id", "store")
_WITHOUT_EFFECT: dict[str, tuple[object, ...]] = {
    "truncation": ("disabled",),
    "background": (False,),
    "top_logprobs": (0,),
    "prompt_logprobs": (),
    "include": ([], ["reasoning.encrypted_content"]),  # reasoning is never encrypted
    **dict.fromkeys(("context_management", "stream_options", "max_tool_calls", "conversation", "prompt"), ()),
    "reasoning.summary": (),
}
"""Unsupported keys, and the values besides null that mean the same as leaving them out."""


def chat_body(body: Mapping[str, Any], earlier: list[dict[str, Any]]) -> dict[str, Any]:
    """Translates the body of a response to the body of a chat completion.

    earlier: the messages before those of the body.

    Raises:
        ApiError: a key that a chat does not have is invalid; other errors are found with the chat's row.
    """
    refuse_longer(body, "input", MAX_MESSAGES)
    refuse_longer(body, "tools", MAX_TOOLS)
    text = _settings(body, "text", ("format", "verbosity"))
    reasoning = _settings(body, "reasoning", ("effort", "summary"))
    values = {**body, "reasoning.summary": reasoning.get("summary")}
    errors = [
        f"{name}={shown(values[name])}: not supported; remove it"
        for name, harmless in _WITHOUT_EFFECT.items()
        if values.get(name) not in (None, *harmless)
    ]
    if errors:
        raise bad_request(errors)
    if instructions := body.get("instructions"):
        earlier = [{"role": "system", "content": instructions}, *earlier]
    chat: dict[str, Any] = {
        _SAME_MEANING.get(name, name): value
        for name, value in body.items()
        if name not in _HERE and name not in _WITHOUT_EFFECT
    }
    settings = {
        "tools": _tools(body.get("tools") or []) or None,
        "response_format": _response_format(text.get("format")),
        "verbosity": text.get("verbosity"),
        "reasoning_effort": reasoning.get("effort"),
    }
    chat |= {name: value for name, value in settings.items() if value is not None}
    if isinstance(choice := body.get("tool_choice"), Mapping):
        chat["tool_choice"] = {"type": choice.get("type"), "function": {"name": choice.get("name")}}
    return {**chat, "messages": [*earlier, *_messages(body.get("input"))]}


def _settings(body: Mapping[str, Any], name: str, known: tuple[str, ...]) -> Mapping[str, Any]:
    settings = body.get(name)
    if not isinstance(settings, Mapping | None):
        raise bad_request(f"{name}={shown(settings)}: must be an object with {' and '.join(known)}", name)
    refuse_unknown(settings or {}, known, f"{name}.")
    return settings or {}


def _messages(items: Any) -> list[dict[str, Any]]:
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    if not isinstance(items, list) or not items:
        raise bad_request(f"input={shown(items)}: must be a text or a list of items", "input")
    messages: list[dict[str, Any]] = []
    for index, item in enumerate(items):
        _add_item(item, f"input[{index}]", messages)
    return messages


def _add_item(item: Any, key: str, messages: list[dict[str, Any]]) -> None:
    kind = item.get("type", "message") if isinstance(item, Mapping) else None
    if kind == "message":
        messages.append({"role": item.get("role"), "content": _content(item.get("content"))})
    elif kind == "function_call_output":
        output = _content(item.get("output"))
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
    elif kind == "function_call":
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant"})
        messages[-1].setdefault("tool_calls", []).append(_chat_call(item))
    elif kind != "reasoning":  # models do not get the reasoning of earlier turns
        hint = did_you_mean(kind, _ITEM_TYPES) if isinstance(kind, str) else ""
        excerpt = f".type={shown(kind)}" if isinstance(item, Mapping) else f"={shown(item)}"
        raise bad_request(f"{key}{excerpt}: must be one of {', '.join(_ITEM_TYPES)}{hint}")


def _chat_call(item: Mapping[str, Any]) -> dict[str, Any]:
    function = {name: item.get(name) for name in ("name", "arguments")}
    return {"id": item.get("call_id"), "type": "function", "function": function}


def _content(content: Any) -> Any:
    """Translates parts of text to those of a chat, which refuses all other parts."""
    if not isinstance(content, list):
        return content
    return [
        {"type": "text", "text": part.get("text")}
        if isinstance(part, Mapping) and part.get("type") in _TEXT_PARTS
        else part
        for part in content
    ]


def _tools(tools: Any) -> list[dict[str, Any]]:
    """Translates tools to those of a chat; only functions are supported."""
    if not isinstance(tools, list):
        raise bad_request(f"tools={shown(tools)}: must be a list of functions", "tools")
    functions = []
    for index, tool in enumerate(tools):
        if not isinstance(tool, Mapping) or tool.get("type") != "function" or not tool.get("name"):
            raise bad_request(f"tools[{index}]={shown(tool)}: must be a function with a name")
        names = ("name", "description", "parameters")
        function = {name: tool[name] for name in names if tool.get(name) is not None}
        functions.append({"type": "function", "function": function})
    return functions


def _response_format(form: Any) -> Any:
    """Translates the format of the text to that of a chat, which nests the schema."""
    if not isinstance(form, Mapping) or form.get("type") != "json_schema":
        return form
    schema = {name: value for name, value in form.items() if name != "type"}
    return {"type": "json_schema", "json_schema": schema}
