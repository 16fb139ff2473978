"""A call that was forced: the whole message is a JSON object with name and arguments, of whatever model."""

from collections.abc import Iterator, Mapping
from typing import Any

from mindbatch.message_formats.call_text import CallText, ToolCall, call_of_object, json_value
from mindbatch.message_formats.parser import MessageFormat

_DEFINITIONS = ("$defs", "definitions")


def _read_call(text: CallText) -> Iterator[ToolCall]:
    yield call_of_object(json_value(text.json()), "arguments")


FORCED_CALL = MessageFormat("forced", (), _read_call, whole_message_call="{")


def call_schema(functions: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON schema of a call of one of the functions, by name, each with the schema of its parameters.

    Definitions stand at the top, where references look for them.

    Raises:
        ValueError: parameters are no schema of an object, or define the same name in different ways.
    """
    calls: list[dict[str, Any]] = []
    tops: dict[str, dict[str, Any]] = {}
    for name, parameters in functions.items():
        if not _is_schema(parameters):
            raise ValueError(f"the parameters of {name} are no JSON schema of an object")
        own = {key: part for key, part in parameters.items() if key not in _DEFINITIONS}
        properties = {"name": {"const": name}, "arguments": {"type": "object", **own}}
        call = {"type": "object", "properties": properties, "required": [*properties]}
        calls.append({**call, "additionalProperties": False})
        for key in _DEFINITIONS:
            for definition, schema in parameters.get(key, {}).items():
                if tops.setdefault(key, {}).setdefault(definition, schema) != schema:
                    raise ValueError(f"{definition} is defined in several ways; name one function")
    return {"anyOf": calls, **tops}


def _is_schema(parameters: Any) -> bool:
    return isinstance(parameters, Mapping) and all(
        isinstance(parameters.get(key, {}), Mapping) for key in _DEFINITIONS
    )
