"""Negates subschemas, for `not`, `if` and a oneOf of required properties."""

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any

from mindbatch.decoding.json_schema.document import Document
from mindbatch.decoding.json_schema.errors import SchemaError
from mindbatch.decoding.json_schema.keywords import ASSERTIONS, TYPES, is_false
from mindbatch.decoding.json_schema.numbers import exact
from mindbatch.io.json_pointer import escaped

MAX_DEPTH = 16
"""Subschemas within each other that are negated."""
MAX_WORK = 5000
"""Subschemas that are negated, each as often as it is referred to."""
_WHERE = "where not, if or oneOf negates it"
_TYPES = [name for name in TYPES if name != "integer"]


class Unlisted(Enum):
    """A keyword of our own: strings that a string must not be."""

    STRINGS = "strings"


class Negation:
    """Negates subschemas of a document; all of them together take a bounded number of steps."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._work = 0

    def of(self, schema: Any, pointer: str, depth: int = 0) -> list[Any]:
        """Schemas of which one holds exactly where this one does not.

        Raises:
            SchemaError: a keyword in it cannot be negated.
        """
        if schema is True:
            return []
        if is_false(schema):
            return [True]
        self._work += 1
        if depth > MAX_DEPTH or self._work > MAX_WORK:
            raise SchemaError(pointer, "it is nested too deeply to be negated by not, if or oneOf")
        keywords, here = self._document.subschemas[self._document.number(schema, pointer)]
        alternatives: list[Any] = []
        for name, value in keywords.items():
            if name in ("allOf", "anyOf", "not", "$ref", "properties"):
                alternatives += self._of_subschemas(name, value, here, depth + 1)
            elif name in _NEGATIONS:
                try:
                    alternatives += _NEGATIONS[name](value)
                except ValueError as error:
                    raise SchemaError(here, f"{error} is not supported {_WHERE}") from error
            elif name in ASSERTIONS or name == "discriminator":
                raise SchemaError(here, f"{name} is not supported {_WHERE}")
        return alternatives

    def _of_subschemas(self, name: str, value: Any, pointer: str, depth: int) -> Iterator[Any]:
        def negation(schema: Any, step: object) -> list[Any]:
            return self.of(schema, f"{pointer}/{name}{step}", depth)

        if name == "not":
            yield value
        elif name == "$ref":
            yield from self.of(*self._document.resolved(value, pointer), depth)
        elif name == "allOf":
            for index, schema in enumerate(value):
                yield from negation(schema, f"/{index}")
        elif name == "anyOf":
            parts = [negation(schema, f"/{index}") for index, schema in enumerate(value)]
            if all(parts):
                yield {"allOf": [{"anyOf": part} for part in parts]}
        else:
            for key, schema in value.items():
                for part in negation(schema, f"/{escaped(key)}"):
                    yield {"type": "object", "required": [key], "properties": {key: part}}


def _types_but(names: set[str]) -> Iterator[dict[str, Any]]:
    if others := [name for name in _TYPES if name not in names]:
        yield {"type": others}


def _type(value: Any) -> Iterator[dict[str, Any]]:
    names = {value} if isinstance(value, str) else {*value}
    if "integer" in names and "number" not in names:
        raise ValueError("type=integer")
    return _types_but(names)


def _listed(values: list[Any]) -> Iterator[dict[Any, Any]]:
    if any(isinstance(value, dict | list) for value in values):
        raise ValueError("an object or array in const or enum")
    strings = [value for value in values if isinstance(value, str)]
    booleans = [value for value in values if isinstance(value, bool)]
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    kinds = {"string": strings, "boolean": booleans, "number": numbers, "null": [None] * (None in values)}
    yield from _types_but({name for name, listed in kinds.items() if listed})
    if strings:
        yield {"type": "string", Unlisted.STRINGS: tuple(strings)}
    if booleans:
        yield {"enum": [value for value in (True, False) if value not in booleans]}
    bounds = sorted({exact(value): value for value in numbers}.items())
    for index in range(len(bounds) + 1 if bounds else 0):
        low = {"exclusiveMinimum": bounds[index - 1][1]} if index else {}
        high = {"exclusiveMaximum": bounds[index][1]} if index < len(bounds) else {}
        yield {"type": "number", **low, **high}


def _required(names: list[str]) -> Iterator[dict[str, Any]]:
    for name in names:
        yield {"type": "object", "properties": {name: False}}


def _beyond(kind: str, keyword: str, step: int) -> Callable[[Any], list[dict[str, Any]]]:
    """Returns the negation of a count's limit: `step` further, by the limit on the other side."""
    return lambda value: [{"type": kind, keyword: value + step}] if value + step >= 0 else []


def _past(keyword: str) -> Callable[[Any], list[dict[str, Any]]]:
    return lambda value: [{"type": "number", keyword: value}]


_NEGATIONS: Mapping[str, Callable[[Any], Any]] = {
    "type": _type,
    "const": lambda value: _listed([value]),
    "enum": _listed,
    "required": _required,
    "minimum": _past("exclusiveMaximum"),
    "maximum": _past("exclusiveMinimum"),
    "minLength": _beyond("string", "maxLength", -1),
    "maxLength": _beyond("string", "minLength", 1),
    "minItems": _beyond("array", "maxItems", -1),
    "maxItems": _beyond("array", "minItems", 1),
}
