"""Values of the environment that a configuration took by ${oc.env:...}: no message or record shows them."""

from __future__ import annotations

import json
import re
from typing import Any

SHORTEST = 4
"""Characters; shorter values occur in words of messages."""

_SURE = 8  # characters of a value that are taken for it where a message was cut
_CUT = re.compile(r"\.\.\.| \.\.\. \(|\Z")
_hidden: dict[str, str] = {}


def hide(value: str, written: str) -> None:
    """From now on `written` is shown in place of `value`, in whatever form a message quotes it."""
    one_line = " ".join(value.split())
    quoted = (json.dumps(value), json.dumps(value, ensure_ascii=False), repr(value), ascii(value))
    forms = {value, one_line, *value.splitlines(), *(text[1:-1] for text in quoted)}
    _hidden.update((form, written) for form in forms if len(form) >= SHORTEST)


def without_hidden(text: str) -> str:
    """`text` with what was written in place of each hidden value, also where its end was cut off."""
    for value in sorted(_hidden, key=len, reverse=True):
        text = text.replace(value, _hidden[value])
        text = _without_cut(text, value) if len(value) > _SURE else text
    return text


def concealed(content: Any) -> Any:
    """Plain JSON types, or a tuple of such, with `without_hidden` for each text."""
    if isinstance(content, str):
        return without_hidden(content)
    if isinstance(content, dict):
        return {concealed(name): concealed(value) for name, value in content.items()}
    return type(content)(map(concealed, content)) if isinstance(content, list | tuple) else content


def _without_cut(text: str, value: str) -> str:
    place = text.find(value[:_SURE])
    while place >= 0:
        end = place + _SURE
        while end < len(text) and end - place < len(value) and text[end] == value[end - place]:
            end += 1
        if _CUT.match(text, end):
            text = text[:place] + _hidden[value] + text[end:]
            end = place + len(_hidden[value])
        place = text.find(value[:_SURE], end)
    return text
