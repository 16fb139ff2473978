"""Finds the types of arguments that are written as text in the schemas of a request's tools."""

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
"""Maximum depth of nested references and alternatives."""
_NUMBER = re.compile(r"[+-]?(\d{1,400}(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)

Kinds = frozenset[str]
_KINDS_BY_TYPE: dict[str, Kinds] = {
    "null": frozenset({"null"}),
    **dict.fromkeys(("boolean", "bool"), frozenset({"boolean"})),
    **dict.fromkeys(("integer", "int"), frozenset({"integer"})),
    **dict.fromkeys(("number", "float", "double"), frozenset({"integer", "number"})),
    **dict.fromkeys(("string", "str", "text"), frozenset({"string"})),
    **dict.fromkeys(("array", "list", "tuple"), frozenset({"array"})),
    **dict.fromkeys(("object", "dict"), frozenset({"object"})),
}
"""Kinds of JSON values by name of a type; includes Python's names, which many tools use."""
_WORDS = {"true": "true", "false": "false", "null": "null", "none": "null"}


@dataclass(frozen=True)
class ArgumentType:
    """The type of one argument.

    kinds: the allowed kinds of JSON values; None allows any. If strings are among several kinds, a text is
        the other value that it spells, or else a string.
    texts: members of an enum that are strings, whatever they spell.
    """

    kinds: Kinds | None = None
    texts: frozenset[str] = frozenset()

    def json_of(self, text: str, words: Mapping[str, str]) -> str:
        """Converts a text to JSON. words: JSON by texts that are not JSON themselves."""
        if text in self.texts or self.kinds == _KINDS_BY_TYPE["string"]:
            return json_text(text)
        stripped = text.strip()
        for candidate in self._candidates(stripped, words):
            kind = _kind(candidate)
            if kind is not None and (self.kinds is None or kind in self.kinds - _KINDS_BY_TYPE["string"]):
                return candidate
        return json_text(text)

    def json_like(self, value: str) -> str:
        """Returns a JSON value unchanged if the type allows it, else converts its text: some templates quote
        all arguments and others none."""
        kind = _kind(value)
        if self.kinds is None or kind is None or kind in self.kinds:
            return value
        return self.json_of(json.loads(value) if kind == "string" else value, {})

    def _candidates(self, text: str, words: Mapping[str, str]) -> Iterator[str]:
        """Yields JSON that a text may mean, the likeliest first."""
        yield text
        if text in words:
            yield words[text]
        if self.kinds is None or "string" in self.kinds:
            return  # any other spelling may be a string
        if (word := text.lower()) in _WORDS:
            yield _WORDS[word]
        if _NUMBER.fullmatch(text):
            yield str(int(text)) if text.lstrip("+-").isdecimal() else repr(float(text))
        if text.startswith(("[", "{", "(")):
            yield _python_json(text)


ANY, TEXT = ArgumentType(), ArgumentType(_KINDS_BY_TYPE["string"])
"""The types of an argument without a schema, whose text is JSON or else a string, and of a string."""


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
        """Returns the type of an argument; ANY if no tool declares it."""
        parameters = self._parameters.get(function)
        if not isinstance(parameters, Mapping):
            return ANY
        if function not in self._readers:
            self._readers[function] = _SchemaTypes(parameters)
        return self._readers[function].of_argument(argument)


def type_of(text: CallText, function: str, argument: str) -> ArgumentType:
    """Returns the type of an argument of the call that is read."""
    if text.argument_type is None:
        return ANY
    type: ArgumentType = text.argument_type(function.strip(), argument)
    return type


def json_call(name: str, values: Sequence[tuple[str, str]]) -> ToolCall:
    """Makes a call of keys and values in JSON. Raises CallError."""
    keys = [key for key, _ in values]
    if len({*keys}) < len(keys):
        raise CallError("duplicate argument")
    members = (f"{json_text(key)}: {value}" for key, value in values)
    arguments = f"{{{', '.join(members)}}}"
    return named_call(name, json_value(arguments), arguments)


class _SchemaTypes:
    """Finds types within one schema; visits each subschema once, since it may refer to itself."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self._parameters = parameters
        self._references = SchemaReferences(parameters)
        self._types: dict[str, ArgumentType] = {}

    def of_argument(self, name: str) -> ArgumentType:
        if name not in self._types:
            schemas = [*self._property(self._parameters, name, set())]
            self._types[name] = _all(self._type(schema, {}) for schema in schemas) if schemas else ANY
        return self._types[name]

    def _property(self, schema: Any, name: str, visited: set[int], depth: int = 0) -> Iterator[Any]:
        """Yields the schemas that apply to a property; alternatives become one anyOf."""
        if not isinstance(schema, Mapping) or id(schema) in visited or depth > _MAX_DEPTH:
            return
        visited.add(id(schema))
        yield from _property_schemas(schema, name)
        for part in (*self._targets(schema), *_listed(schema, "allOf")):
            yield from self._property(part, name, visited, depth + 1)
        for key in ("anyOf", "oneOf"):
            branches = [[*self._property(part, name, visited, depth + 1)] for part in _listed(schema, key)]
            if any(branches):
                yield {"anyOf": [{"allOf": branch} for branch in branches if branch]}

    def _type(self, schema: Any, known: dict[int, ArgumentType], depth: int = 0) -> ArgumentType:
        """Returns the type of a schema. known: types of visited schemas, ANY during their visit."""
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            return ANY
        if id(schema) not in known:
            known[id(schema)] = ANY
            parts = [_declared_type(schema)]
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


def _property_schemas(schema: Mapping[str, Any], name: str) -> Iterator[Any]:
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and name in properties:
        yield properties[name]
    elif isinstance(schema.get("additionalProperties"), Mapping) and not schema.get("patternProperties"):
        yield schema["additionalProperties"]


def _listed(schema: Mapping[str, Any], key: str) -> list[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else []


def _declared_type(schema: Mapping[str, Any]) -> ArgumentType:
    types = schema.get("type")
    names = [types] if isinstance(types, str) else types if isinstance(types, list) else []
    kinds = [
        _KINDS_BY_TYPE[name.lower()]
        for name in names
        if isinstance(name, str) and name.lower() in _KINDS_BY_TYPE
    ]
    typed = ArgumentType(frozenset[str]().union(*kinds) if kinds and len(kinds) == len(names) else None)
    values = [schema["const"]] if "const" in schema else _listed(schema, "enum")
    if not values:
        return typed
    texts = frozenset(value for value in values if isinstance(value, str))
    return _all([typed, ArgumentType(frozenset(map(_kind_of, values)), texts)])


def _all(types: Iterable[ArgumentType]) -> ArgumentType:
    """Returns the type of values that are of all the types."""

    def both(first: ArgumentType, second: ArgumentType) -> ArgumentType:
        texts = first.texts | second.texts
        if first.kinds is None or second.kinds is None:
            return ArgumentType(second.kinds if first.kinds is None else first.kinds, texts)
        return ArgumentType(first.kinds & second.kinds, texts)

    return reduce(both, types, ANY)


def _any(types: Iterable[ArgumentType]) -> ArgumentType:
    """Returns the type of values that are of any of the types."""
    types = [*types]
    texts = frozenset[str]().union(*(type.texts for type in types))
    kinds = [type.kinds for type in types if type.kinds is not None]
    return ArgumentType(frozenset[str]().union(*kinds) if len(kinds) == len(types) else None, texts)


def _nullable(type: ArgumentType, schema: Mapping[str, Any]) -> ArgumentType:
    """Adds null if OpenAPI's keyword `nullable` allows it."""
    if schema.get("nullable") is not True or type.kinds is None:
        return type
    return ArgumentType(type.kinds | {"null"}, type.texts)


def _python_json(text: str) -> str:
    """Converts a Python list or dict to JSON; returns an empty text for anything else."""
    reader = CallText(text)
    try:
        value = read_literal(reader, PYTHON)
    except CallError:
        return ""
    return value if reader.at_end else ""


def _kind(text: str) -> str | None:
    """Returns the kind of a JSON text's value; None if it is not strict JSON."""
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
