"""The types of arguments that come as text: the schemas of the tools that a request offers say them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from mindbatch.message_formats.call_text import (
    CallError,
    CallText,
    ToolCall,
    json_text,
    json_value,
    named_call,
)
from mindbatch.message_formats.literals import PYTHON, read_literal
from mindbatch.message_formats.schema_references import REFERENCES, SchemaReferences

_MAX_DEPTH = 50
"""References and alternatives that are followed one after another."""
_NUMBER = re.compile(r"[+-]?(\d{1,400}(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)

Kinds = frozenset[str]
_OF_TYPE: dict[str, Kinds] = {
    "null": frozenset({"null"}),
    **dict.fromkeys(("boolean", "bool"), frozenset({"boolean"})),
    **dict.fromkeys(("integer", "int"), frozenset({"integer"})),
    **dict.fromkeys(("number", "float", "double"), frozenset({"integer", "number"})),
    **dict.fromkeys(("string", "str", "text"), frozenset({"string"})),
    **dict.fromkeys(("array", "list", "tuple"), frozenset({"array"})),
    **dict.fromkeys(("object", "dict"), frozenset({"object"})),
}
"""By name of a type; as Python calls them, too, for many tools are written so."""
_WORDS = {"true": "true", "false": "false", "null": "null", "none": "null"}


@dataclass(frozen=True)
class ArgumentType:
    """A type of one argument. kinds: of JSON values, None: any; texts: that are certainly texts, of an enum.

    A text may be of several kinds: then it is the value that it spells, and a text where it spells none.
    """

    kinds: Kinds | None = None
    texts: frozenset[str] = frozenset()

    def json_of(self, text: str, words: Mapping[str, str]) -> str:
        """The JSON that a text stands for. words: texts that stand for JSON, though they are none."""
        if text in self.texts or self.kinds == _OF_TYPE["string"]:
            return json_text(text)
        stripped = text.strip()
        for candidate in self._spelt(stripped, words):
            kind = _kind(candidate)
            if kind is not None and (self.kinds is None or kind in self.kinds - _OF_TYPE["string"]):
                return candidate
        return json_text(text)

    def json_like(self, value: str) -> str:
        """A JSON value as it is where the type has such, else what its text stands for: templates that put
        arguments into quotes, or leave them out, do so with all."""
        kind = _kind(value)
        if self.kinds is None or kind is None or kind in self.kinds:
            return value
        return self.json_of(json.loads(value) if kind == "string" else value, {})

    def _spelt(self, text: str, words: Mapping[str, str]) -> Iterator[str]:
        """JSON texts that a text may spell, the likeliest first."""
        yield text
        if text in words:
            yield words[text]
        if self.kinds is None or "string" in self.kinds:
            return  # another spelling may as well be meant as a text
        if (word := text.lower()) in _WORDS:
            yield _WORDS[word]
        if _NUMBER.fullmatch(text):
            yield str(int(text)) if text.lstrip("+-").isdecimal() else repr(float(text))
        if text.startswith(("[", "{", "(")):
            yield _of_python(text)


ANY, TEXT = ArgumentType(), ArgumentType(_OF_TYPE["string"])
"""Without a schema a text is the JSON that it is, and a text where it is none."""


class ArgumentTypes:
    """The types of the arguments of all tools of a request."""

    def __init__(self, tools: Sequence[Any] = ()) -> None:
        functions = (tool.get("function", tool) for tool in tools if isinstance(tool, Mapping))
        self._parameters = {
            function["name"]: function.get("parameters")
            for function in functions
            if isinstance(function, Mapping) and isinstance(function.get("name"), str)
        }
        self.functions = tuple(self._parameters)
        self._readers: dict[str, _SchemaTypes] = {}

    def of(self, function: str, argument: str) -> ArgumentType:
        """The type of an argument; ANY where no tool says it."""
        parameters = self._parameters.get(function)
        if not isinstance(parameters, Mapping):
            return ANY
        if function not in self._readers:
            self._readers[function] = _SchemaTypes(parameters)
        return self._readers[function].of_argument(argument)


def type_of(text: CallText, function: str, argument: str) -> ArgumentType:
    """The type of an argument of a call that is read from a text."""
    if text.argument_type is None:
        return ANY
    type: ArgumentType = text.argument_type(function.strip(), argument)
    return type


def json_call(name: str, values: Sequence[tuple[str, str]]) -> ToolCall:
    """The call of keys and values that are JSON texts. Raises CallError."""
    keys = [key for key, _ in values]
    if len({*keys}) < len(keys):
        raise CallError("an argument comes twice")
    members = (f"{json_text(key)}: {value}" for key, value in values)
    arguments = f"{{{', '.join(members)}}}"
    return named_call(name, json_value(arguments), arguments)


class _SchemaTypes:
    """Types within one schema. A schema is looked at once for each question: it may refer to itself."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self._parameters = parameters
        self._references = SchemaReferences(parameters)
        self._types: dict[str, ArgumentType] = {}

    def of_argument(self, name: str) -> ArgumentType:
        if name not in self._types:
            schemas = [*self._property(self._parameters, name, set())]
            self._types[name] = _all(self._type(schema, {}) for schema in schemas) if schemas else ANY
        return self._types[name]

    def _property(self, schema: Any, name: str, seen: set[int], depth: int = 0) -> Iterator[Any]:
        """The schemas that hold for a property; those of alternatives as one."""
        if not isinstance(schema, Mapping) or id(schema) in seen or depth > _MAX_DEPTH:
            return
        seen.add(id(schema))
        yield from _declared(schema, name)
        for part in (*self._targets(schema), *_listed(schema, "allOf")):
            yield from self._property(part, name, seen, depth + 1)
        for key in ("anyOf", "oneOf"):
            branches = [[*self._property(part, name, seen, depth + 1)] for part in _listed(schema, key)]
            if any(branches):
                yield {"anyOf": [{"allOf": branch} for branch in branches if branch]}

    def _type(self, schema: Any, known: dict[int, ArgumentType], depth: int = 0) -> ArgumentType:
        """known: types of schemas that were met before, ANY while they are looked at."""
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            return ANY
        if id(schema) not in known:
            known[id(schema)] = ANY
            parts = [_own_type(schema)]
            required = (*self._targets(schema), *_listed(schema, "allOf"))
            parts += [self._type(part, known, depth + 1) for part in required]
            for key in ("anyOf", "oneOf"):
                if branches := [*_listed(schema, key)]:
                    parts.append(_any(self._type(part, known, depth + 1) for part in branches))
            known[id(schema)] = _nullable(_all(parts), schema)
        return known[id(schema)]

    def _targets(self, schema: Mapping[str, Any]) -> list[Any]:
        texts = [schema[key] for key in REFERENCES if isinstance(schema.get(key), str)]
        return [self._references.target(schema, text) for text in texts]


def _declared(schema: Mapping[str, Any], name: str) -> Iterator[Any]:
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and name in properties:
        yield properties[name]
    elif isinstance(schema.get("additionalProperties"), Mapping) and not schema.get("patternProperties"):
        yield schema["additionalProperties"]


def _listed(schema: Mapping[str, Any], key: str) -> list[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else []


def _own_type(schema: Mapping[str, Any]) -> ArgumentType:
    types = schema.get("type")
    names = [types] if isinstance(types, str) else types if isinstance(types, list) else []
    kinds = [_OF_TYPE[name.lower()] for name in names if isinstance(name, str) and name.lower() in _OF_TYPE]
    typed = ArgumentType(frozenset[str]().union(*kinds) if kinds and len(kinds) == len(names) else None)
    values = [schema["const"]] if "const" in schema else _listed(schema, "enum")
    if not values:
        return typed
    texts = frozenset(value for value in values if isinstance(value, str))
    return _all([typed, ArgumentType(frozenset(map(_kind_of, values)), texts)])


def _all(types: Iterable[ArgumentType]) -> ArgumentType:
    """The type of what is of each of the types."""

    def both(first: ArgumentType, second: ArgumentType) -> ArgumentType:
        texts = first.texts | second.texts
        if first.kinds is None or second.kinds is None:
            return ArgumentType(second.kinds if first.kinds is None else first.kinds, texts)
        return ArgumentType(first.kinds & second.kinds, texts)

    return reduce(both, types, ANY)


def _any(types: Iterable[ArgumentType]) -> ArgumentType:
    """The type of what is of one of the types."""
    types = [*types]
    texts = frozenset[str]().union(*(type.texts for type in types))
    kinds = [type.kinds for type in types if type.kinds is not None]
    return ArgumentType(frozenset[str]().union(*kinds) if len(kinds) == len(types) else None, texts)


def _nullable(type: ArgumentType, schema: Mapping[str, Any]) -> ArgumentType:
    """With null where OpenAPI's keyword allows it."""
    if schema.get("nullable") is not True or type.kinds is None:
        return type
    return ArgumentType(type.kinds | {"null"}, type.texts)


def _of_python(text: str) -> str:
    """The JSON of a list or mapping as Python writes it; an empty text of anything else."""
    reader = CallText(text)
    try:
        value = read_literal(reader, PYTHON)
    except CallError:
        return ""
    return value if reader.at_end else ""


def _kind(text: str) -> str | None:
    """The kind of the value of a JSON text; None where it is none, read strictly."""
    try:
        return _kind_of(json_value(text))
    except CallError:
        return None


def _kind_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, float):
        return "integer" if value.is_integer() else "number"
    names = {int: "integer", str: "string", list: "array", dict: "object"}
    return next((name for type, name in names.items() if isinstance(value, type)), "number")
