"""Checks the tool calls of messages, and converts their arguments between objects and JSON text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mindbatch.io.error_lines import shown
from mindbatch.io.strict_json import DEEPEST_VALUE, JsonError, StrictReader, value_errors

_JSON = StrictReader(max_depth=DEEPEST_VALUE)
_FUNCTION, _ARGUMENTS = "function", "arguments"
_NONE = ("", "null")
"""Texts that clients send for a call without arguments."""


def checked_calls(calls: object, where: str, errors: list[str]) -> list[Any]:
    """Copies the calls without members that are null; other members stay unchanged.

    errors: gets a line for each call that is malformed or whose arguments are not an object.
    """
    if not isinstance(calls, list | tuple):
        errors.append(f'{where}={shown(calls)}: must be a list of calls such as {{"function": {{...}}}}')
        return []
    return [_checked_call(call, f"{where}[{index}]", errors) for index, call in enumerate(calls)]


def without_nulls(members: Mapping[Any, Any]) -> dict[Any, Any]:
    """Copies a mapping without null members, which mean the same as absent ones but are text to templates."""
    return {name: value for name, value in members.items() if value is not None}


def _checked_call(call: object, where: str, errors: list[str]) -> Any:
    if not isinstance(call, Mapping):
        errors.append(f"{where}={shown(call)}: must be a mapping with a function")
        return call
    checked = without_nulls(call)
    function, at = checked.get(_FUNCTION, checked), where
    if _FUNCTION in checked:
        at = f"{where}.{_FUNCTION}"
        if not isinstance(function, Mapping):
            errors.append(f"{at}={shown(function)}: must be a mapping with name and arguments")
            return checked
        function = checked[_FUNCTION] = without_nulls(function)
    try:
        parsed = _object(function.get(_ARGUMENTS))
    except JsonError as error:
        errors.append(f"{at}.{_ARGUMENTS}={shown(function[_ARGUMENTS])}: {error}")
    else:
        if isinstance(function.get(_ARGUMENTS), str):  # others are checked with the message
            errors += value_errors(parsed, f"{at}.{_ARGUMENTS}")
    return checked


def _object(arguments: object) -> Mapping[str, Any]:
    """Returns the arguments of a call as an object. Raises JsonError if they are not one."""
    if arguments is None or (isinstance(arguments, str) and arguments.strip() in _NONE):
        return {}
    parsed = _JSON.parse(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(parsed, Mapping):
        raise JsonError("must be a JSON object, or the text of one")
    return parsed


def with_arguments(call: Any, *, as_text: bool) -> Any:
    """Returns a checked call with its arguments as JSON text or as an object."""
    if _FUNCTION in call:
        return {**call, _FUNCTION: _with_arguments(call[_FUNCTION], as_text)}
    return _with_arguments(call, as_text) if _ARGUMENTS in call else call


def _with_arguments(function: Mapping[str, Any], as_text: bool) -> dict[str, Any]:
    arguments = function.get(_ARGUMENTS)
    parsed = _object(arguments)
    if not as_text:
        return {**function, _ARGUMENTS: parsed}
    is_text = isinstance(arguments, str) and arguments.strip() not in _NONE
    return {**function, _ARGUMENTS: arguments if is_text else json.dumps(parsed, ensure_ascii=False)}
