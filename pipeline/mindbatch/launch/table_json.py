"""JSON of a rank table: bounded in size, UTF-8, with every repeated key found and named by its place."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from mindbatch import fault_lines
from mindbatch.regular_file import first_bytes
from mindbatch.storage import reason_of
from mindbatch.strict_json import JsonFault, StrictReader, Words

LARGEST_FILE = 8 << 20
"""Bytes of a table of about 50,000 devices."""

LONGEST_SHOWN = 60


class JsonObject(dict[str, Any]):
    """An object that remembers the keys it had more than once; each kept its first value."""

    repeated: tuple[str, ...] = ()


def read_json(path: Path) -> Any:
    """The content of a file. Raises ValueError saying in one line why there is none."""
    try:
        data = first_bytes(path, LARGEST_FILE + 1)
    except OSError as error:
        raise ValueError(f"cannot be read ({reason_of(error)})") from error
    if len(data) > LARGEST_FILE:
        raise ValueError(f"more than {LARGEST_FILE >> 20} MiB; no rank table is so large")
    return parse_json(data)


def parse_json(data: bytes) -> Any:
    """What `data` holds, its objects as JsonObject. Raises ValueError with one line."""
    try:
        return _READER.parse(data)
    except JsonFault as fault:
        raise ValueError(f"{fault}; JSON has no comments" if b"//" in data else str(fault)) from fault


def repeated_keys(document: Any) -> Iterator[str]:
    """A line for each key that an object has more than once."""
    for place, value in walk(document):
        for key in value.repeated if isinstance(value, JsonObject) else ():
            yield f"{at(place, key)}: the key appears twice in one object"


def walk(document: Any) -> Iterator[tuple[str, Any]]:
    """Every value with its place, as `server_list[0].device[3].rank_id`; no recursion, whatever the depth."""
    waiting: list[tuple[str, Any]] = [("", document)]
    while waiting:
        place, value = waiting.pop()
        yield place, value
        below: list[tuple[str, Any]] = []
        if isinstance(value, dict):
            below = [(at(place, key), item) for key, item in value.items()]
        elif isinstance(value, list):
            below = [(f"{place}[{number}]", item) for number, item in enumerate(value)]
        waiting += reversed(below)


def at(place: str, key: str) -> str:
    """The place of `key` in the object at `place`."""
    plain = key.isidentifier() and key.isascii() and len(key) <= LONGEST_SHOWN
    name = key if plain else shown(key)
    return f"{place}.{name}" if place else name


def _as_json(value: object) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return json.dumps(value)


shown = partial(fault_lines.shown, longest=LONGEST_SHOWN, notation=_as_json)
"""A value as JSON on one short line of plain characters."""


def as_given(text: str) -> str:
    """`text` as it is where it is a short line that can be printed, else as `shown`."""
    return text if text.isprintable() and len(text) <= LONGEST_SHOWN else shown(text)


def _object(pairs: list[tuple[str, Any]]) -> JsonObject:
    result, repeated = JsonObject(), []
    for key, value in pairs:
        if key in result:
            repeated.append(key)
        else:
            result[key] = value
    result.repeated = tuple(dict.fromkeys(repeated))
    return result


_READER = StrictReader(
    Words(large_integer="not valid JSON (a number has {digits} digits)"), max_digits=20, objects=_object
)
