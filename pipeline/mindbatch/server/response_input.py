"""Input of /v1/responses: its items as the messages of a chat, its tools and settings as a chat's body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindbatch.io.fault_lines import did_you_mean, shown
from mindbatch.server.requests import MOST_FAULTS, ApiError, bad_request, refuse_unknown

_TEXT_PARTS = ("input_text", "output_text", "text")
_ITEM_TYPES = ("message", "function_call", "function_call_output", "reasoning")
_SAME_MEANING = {"max_output_tokens": "max_completion_tokens"}
_HERE = ("include", "input", "instructions", "text", "reasoning", "tools", "previous_response_id", "store")
_ONE_VALUE: dict[str, Any] = {
    "truncation": "disabled",
    "background": False,
    "context_management": None,
    "stream_options": None,
    "max_tool_calls": None,
    "top_logprobs": 0,
    "conversation": None,
    "prompt": None,
}
"""Keys that are known, and the one value with which leaving them out changes nothing."""


def chat_body(body: Mapping[str, Any], earlier: list[dict[str, Any]]) -> dict[str, Any]:
    """The body of a chat completion that stands for one of a response; `earlier`: messages before its own.

    Raises:
        ApiError: naming every fault; those of what a chat has too are found with its row.
    """
    faults = [
        f"{name}={shown(body[name])}: not supported; leave it out"
        for name, value in _ONE_VALUE.items()
        if body.get(name) not in (None, value)
    ]
    if body.get("include") not in (None, [], ["reasoning.encrypted_content"]):  # there is none of that
        faults.append(f"include={shown(body['include'])}: not supported; leave it out")
    chat: dict[str, Any] = {
        _SAME_MEANING.get(name, name): value
        for name, value in body.items()
        if name not in _HERE and name not in _ONE_VALUE
    }
    messages = _messages(body, faults)
    if instructions := body.get("instructions"):
        if not isinstance(instructions, str):
            faults.append(f"instructions={shown(instructions)}: must be a text")
        earlier = [{"role": "system", "content": instructions}, *earlier]
    chat["messages"] = [*earlier, *messages]
    if tools := body.get("tools"):
        chat["tools"] = _tools(tools, faults)
    chat |= _format(body.get("text"), faults)
    if faults:
        raise bad_request(faults)
    if reasoning := body.get("reasoning"):
        chat |= _reasoning(reasoning)
    return chat


def _messages(body: Mapping[str, Any], faults: list[str]) -> list[dict[str, Any]]:
    items = body.get("input")
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    if not isinstance(items, list) or not items:
        faults.append(f"input={shown(items)}: must be a text or a list of items")
        return []
    messages: list[dict[str, Any]] = []
    for place, item in enumerate(items):
        _add_item(item, f"input[{place}]", messages, faults)
        if len(faults) > MOST_FAULTS:
            break
    return messages


def _add_item(item: Any, where: str, messages: list[dict[str, Any]], faults: list[str]) -> None:
    kind = item.get("type", "message") if isinstance(item, Mapping) else None
    if kind not in _ITEM_TYPES:
        near = did_you_mean(kind, _ITEM_TYPES) if isinstance(kind, str) else ""
        excerpt = f".type={shown(kind)}" if isinstance(item, Mapping) else f"={shown(item)}"
        faults.append(f"{where}{excerpt}: must be one of {', '.join(_ITEM_TYPES)}{near}")
    elif kind == "message":
        messages.append({"role": item.get("role"), "content": _content(item.get("content"), where, faults)})
    elif kind == "function_call_output":
        output = _content(item.get("output"), where, faults)
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
    elif kind == "function_call":
        call = {name: item.get(name) for name in ("name", "arguments")}
        entry = {"id": item.get("call_id"), "type": "function", "function": call}
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": ""})
        messages[-1].setdefault("tool_calls", []).append(entry)
    # Reasoning of earlier turns is not shown to models again.


def _content(content: Any, where: str, faults: list[str]) -> Any:
    """Parts as those of a chat; what is no list is judged as a chat's content is."""
    if not isinstance(content, list):
        return content
    parts = []
    for place, part in enumerate(content):
        if isinstance(part, Mapping) and part.get("type") in _TEXT_PARTS:
            parts.append({"type": "text", "text": part.get("text")})
        else:
            allowed = "must be {type: input_text, text: ...}; only text is supported"
            faults.append(f"{where}.content[{place}]={shown(part)}: {allowed}")
    return parts


def _tools(tools: Any, faults: list[str]) -> list[dict[str, Any]]:
    if not isinstance(tools, list):
        faults.append(f"tools={shown(tools)}: must be a list of functions")
        return []
    functions = []
    for place, tool in enumerate(tools):
        if not isinstance(tool, Mapping) or tool.get("type") != "function" or not tool.get("name"):
            faults.append(f"tools[{place}]={shown(tool)}: must be a function with a name; no other tools")
            continue
        names = ("name", "description", "parameters")
        function = {name: tool[name] for name in names if tool.get(name) is not None}
        functions.append({"type": "function", "function": function})
    return functions


def _format(text: Any, faults: list[str]) -> dict[str, Any]:
    """The response_format of `text`, if it asks for one."""
    if text is None:
        return {}
    form = text.get("format") if isinstance(text, Mapping) else None
    if (
        not isinstance(text, Mapping)
        or text.keys() - {"format", "verbosity"}
        or not isinstance(form, Mapping | None)
    ):
        faults.append(f"text={shown(text)}: must be an object with format")
        return {}
    if text.get("verbosity") not in (None, "medium"):
        faults.append(f"text.verbosity={shown(text['verbosity'])}: not supported; leave it out")
    if form is None:
        return {}
    if form.get("type") != "json_schema":
        return {"response_format": dict(form)}
    schema = {name: value for name, value in form.items() if name != "type"}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _reasoning(reasoning: Any) -> dict[str, Any]:
    """The field of a chat that says how much to reason."""
    if not isinstance(reasoning, Mapping):
        raise bad_request(f"reasoning={shown(reasoning)}: must be an object", "reasoning")
    refuse_unknown(reasoning, ("effort", "summary"), "reasoning.")
    if reasoning.get("summary") is not None:
        raise ApiError(400, "reasoning.summary: not supported; leave it out", "invalid_request")
    effort = reasoning.get("effort")
    return {} if effort is None else {"reasoning_effort": effort}
