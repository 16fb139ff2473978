"""Input of /v1/responses as the body of a chat; what a chat has too is checked with its row."""

from collections.abc import Mapping
from typing import Any

from mindbatch.io.fault_lines import did_you_mean, shown
from mindbatch.server.requests import bad_request, refuse_unknown

_TEXT_PARTS = ("input_text", "output_text", "text")
_ITEM_TYPES = ("message", "function_call", "function_call_output", "reasoning")
_SAME_MEANING = {"max_output_tokens": "max_completion_tokens"}
_HERE = ("input", "instructions", "text", "reasoning", "tools", "previous_response_id", "store")
_WITHOUT_EFFECT: dict[str, tuple[object, ...]] = {
    "truncation": ("disabled",),
    "background": (False,),
    "top_logprobs": (0,),
    "include": ([], ["reasoning.encrypted_content"]),  # there is none of that
    **dict.fromkeys(("context_management", "stream_options", "max_tool_calls", "conversation", "prompt"), ()),
    "reasoning.summary": (),
}
"""Keys that are known, and the values besides null with which leaving them out changes nothing."""


def chat_body(body: Mapping[str, Any], earlier: list[dict[str, Any]]) -> dict[str, Any]:
    """The body of a chat completion that stands for one of a response; `earlier`: messages before its own.

    Raises:
        ApiError: for what is no part of a chat's body; faults of a chat's body are found with its row.
    """
    text = _settings(body, "text", ("format", "verbosity"))
    reasoning = _settings(body, "reasoning", ("effort", "summary"))
    values = {**body, "reasoning.summary": reasoning.get("summary")}
    faults = [
        f"{name}={shown(values[name])}: not supported; leave it out"
        for name, harmless in _WITHOUT_EFFECT.items()
        if values.get(name) not in (None, *harmless)
    ]
    if faults:
        raise bad_request(faults)
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
    for place, item in enumerate(items):
        _add_item(item, f"input[{place}]", messages)
    return messages


def _add_item(item: Any, where: str, messages: list[dict[str, Any]]) -> None:
    kind = item.get("type", "message") if isinstance(item, Mapping) else None
    if kind == "message":
        messages.append({"role": item.get("role"), "content": _content(item.get("content"))})
    elif kind == "function_call_output":
        output = _content(item.get("output"))
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
    elif kind == "function_call":
        call = {name: item.get(name) for name in ("name", "arguments")}
        entry = {"id": item.get("call_id"), "type": "function", "function": call}
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": ""})
        messages[-1].setdefault("tool_calls", []).append(entry)
    elif kind != "reasoning":  # that of earlier turns is not shown to models again
        near = did_you_mean(kind, _ITEM_TYPES) if isinstance(kind, str) else ""
        excerpt = f".type={shown(kind)}" if isinstance(item, Mapping) else f"={shown(item)}"
        raise bad_request(f"{where}{excerpt}: must be one of {', '.join(_ITEM_TYPES)}{near}")


def _content(content: Any) -> Any:
    """Parts of text as those of a chat, which refuses all others."""
    if not isinstance(content, list):
        return content
    return [
        {"type": "text", "text": part.get("text")}
        if isinstance(part, Mapping) and part.get("type") in _TEXT_PARTS
        else part
        for part in content
    ]


def _tools(tools: Any) -> list[dict[str, Any]]:
    """Tools as those of a chat, which may be of any kind."""
    if not isinstance(tools, list):
        raise bad_request(f"tools={shown(tools)}: must be a list of functions", "tools")
    functions = []
    for place, tool in enumerate(tools):
        if not isinstance(tool, Mapping) or tool.get("type") != "function" or not tool.get("name"):
            raise bad_request(f"tools[{place}]={shown(tool)}: must be a function with a name; no other tools")
        names = ("name", "description", "parameters")
        function = {name: tool[name] for name in names if tool.get(name) is not None}
        functions.append({"type": "function", "function": function})
    return functions


def _response_format(form: Any) -> Any:
    """The format of the text, whose schema stands within a field of its own in a chat."""
    if not isinstance(form, Mapping) or form.get("type") != "json_schema":
        return form
    schema = {name: value for name, value in form.items() if name != "type"}
    return {"type": "json_schema", "json_schema": schema}
