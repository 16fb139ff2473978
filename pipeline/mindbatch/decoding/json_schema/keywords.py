"""Keywords of JSON Schema: what the value of each must be, and those that are not supported."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from mindbatch.decoding.json_schema.errors import SchemaError
from mindbatch.io.error_lines import nearest, shown

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
DRAFT_7, DRAFT_2019, DRAFT_2020, UNNAMED = 7, 2019, 2020, 9999
"""In their order; drafts 4 and 6 are read as draft 7, which only has more keywords. A schema that names none
is one of 2020-12, in which keywords of older drafts mean what they did there: they can mean nothing else."""
_DRAFTS = {
    "http://json-schema.org/schema": UNNAMED,
    "http://json-schema.org/draft-04/schema": DRAFT_7,
    "http://json-schema.org/draft-06/schema": DRAFT_7,
    "http://json-schema.org/draft-07/schema": DRAFT_7,
    "https://json-schema.org/draft/2019-09/schema": DRAFT_2019,
    "https://json-schema.org/draft/2020-12/schema": DRAFT_2020,
}
_BY_ADDRESS = {name.partition("://")[2]: draft for name, draft in _DRAFTS.items()}
ANNOTATIONS = frozenset({
    "$anchor", "$comment", "$defs", "$dynamicAnchor", "$id", "$recursiveAnchor", "$schema", "$vocabulary",
    "contentEncoding", "contentMediaType", "contentSchema", "default", "definitions", "deprecated",
    "description", "else", "examples", "maxContains", "minContains", "readOnly", "then", "title", "writeOnly",
})  # fmt: skip
"""Keywords that forbid no value: notes, names of schemas, and what counts only beside an unsupported one."""
_UNKNOWN = {
    DRAFT_7: {
        "prefixItems", "dependentRequired", "dependentSchemas", "unevaluatedItems", "unevaluatedProperties",
        "$dynamicRef", "$recursiveRef",
    },
    DRAFT_2019: {"prefixItems", "$dynamicRef"},
    DRAFT_2020: set(), UNNAMED: set(),
}  # fmt: skip
"""Keywords that a draft does not have, and so takes for notes."""


def _is_schema(value: Any) -> bool:
    return isinstance(value, bool | dict)


def _is_schemas(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_schema, value))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_type(value: Any) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in TYPES for name in names)


def _mapping_of(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


_SCHEMA = (_is_schema, "a schema: an object, true or false")
_SCHEMAS = (lambda value: bool(value) and _is_schemas(value), "a list of schemas, at least one")
_SCHEMA_BY_NAME = (_mapping_of(_is_schema), "an object of schemas")
_NUMBER = (_is_number, "a number")
_BOUND = (lambda value: _is_number(value) or isinstance(value, bool), "a number")
_COUNT = (_is_count, "a whole number from 0")
_TEXT = (lambda value: isinstance(value, str), "a text")
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "$ref": _TEXT,
    "additionalItems": _SCHEMA,
    "additionalProperties": _SCHEMA,
    "allOf": _SCHEMAS,
    "anyOf": _SCHEMAS,
    "const": (lambda _: True, ""),
    "dependentRequired": (_mapping_of(_is_names), "an object of lists of names"),
    "dependentSchemas": _SCHEMA_BY_NAME,
    "dependencies": (
        _mapping_of(lambda value: _is_schema(value) or _is_names(value)),
        "an object of schemas or lists of names",
    ),
    "enum": (lambda value: isinstance(value, list), "a list"),
    "exclusiveMaximum": _BOUND,
    "exclusiveMinimum": _BOUND,
    "format": _TEXT,
    "if": _SCHEMA,
    "items": _SCHEMA,
    "maxItems": _COUNT,
    "maxLength": _COUNT,
    "maxProperties": _COUNT,
    "maximum": _NUMBER,
    "minItems": _COUNT,
    "minLength": _COUNT,
    "minProperties": _COUNT,
    "minimum": _NUMBER,
    "multipleOf": (lambda value: _is_number(value) and value > 0, "a number above 0"),
    "not": _SCHEMA,
    "oneOf": _SCHEMAS,
    "pattern": _TEXT,
    "patternProperties": _SCHEMA_BY_NAME,
    "prefixItems": _SCHEMAS,
    "properties": _SCHEMA_BY_NAME,
    "propertyNames": _SCHEMA,
    "required": (_is_names, "a list of names"),
    "type": (_is_type, f"one or more of {', '.join(TYPES)}"),
    "uniqueItems": (lambda value: isinstance(value, bool), "true or false"),
}
ASSERTIONS = frozenset(_KINDS)
_TUPLE = "a list of schemas is prefixItems in this draft"
_UNSUPPORTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "$dynamicRef": (lambda _: False, "$ref is"),
    "$recursiveRef": (lambda _: False, "$ref is"),
    "contains": (lambda _: False, "items and prefixItems are"),
    "unevaluatedItems": (lambda value: value in (True, {}), "items=false is"),
    "unevaluatedProperties": (lambda value: value in (True, {}), "additionalProperties=false is"),
}
"""By keyword, the values that forbid nothing, and what is supported instead."""


_NAMES = sorted(ASSERTIONS | _UNSUPPORTED.keys())


def draft_of(schema: Mapping[str, Any]) -> int:
    """Returns the draft that a schema follows, by its `$schema`."""
    name = schema.get("$schema", "http://json-schema.org/schema")
    address = name.rstrip("#").partition("://")[2] if isinstance(name, str) else ""
    if address not in _BY_ADDRESS:
        raise SchemaError("#", f"$schema={shown(name)}: must be one of {', '.join(_DRAFTS)}")
    return _BY_ADDRESS[address]


def is_false(schema: Any) -> bool:
    """True for false, and for {"not": {}}, which programs write instead."""
    return schema is False or (
        isinstance(schema, dict) and (schema.get("not") is True or schema.get("not") == {})
    )


def keywords_of(schema: Mapping[Any, Any], draft: int) -> dict[Any, Any]:
    """Returns the keywords of a subschema that its draft reads: draft 7 reads none beside $ref."""
    if draft == DRAFT_7 and "$ref" in schema:
        return {"$ref": schema["$ref"]}
    return {name: value for name, value in schema.items() if name not in _UNKNOWN[draft]}


def keyword_errors(keywords: Mapping[Any, Any], pointer: str, draft: int) -> list[str]:
    """Errors in the keywords of a subschema that are not supported, misspelt, or whose value is wrong."""
    errors = []
    for name, value in keywords.items():
        if name in _UNSUPPORTED:
            errors.append(_unsupported_error(name, value))
        elif name in _KINDS:
            errors.append(_value_error(name, value, draft))
        elif isinstance(name, str) and name not in ANNOTATIONS:
            errors.append(_spelling_error(name))
    return [f"at {pointer}: {error}" for error in errors if error is not None]


@lru_cache(maxsize=1024)
def _spelling_error(name: str) -> str | None:
    """Any other name is a note, as JSON Schema says, unless it is nearly a keyword."""
    similar = [keyword for keyword in _NAMES if abs(len(keyword) - len(name)) <= 2]  # few, as it takes time
    meant = nearest(name, similar, cutoff=0.85)
    return None if meant is None else f"{shown(name)} is no keyword; did you mean {meant}?"


def _unsupported_error(name: str, value: Any) -> str | None:
    is_idle, supported = _UNSUPPORTED[name]
    if is_idle(value):
        return None
    return f"{name} is not supported; {supported}"


def _value_error(name: str, value: Any, draft: int) -> str | None:
    if draft != DRAFT_2020 and name == "items" and _is_schemas(value):
        return None
    later = {"additionalItems": DRAFT_2020, "dependencies": DRAFT_2019}
    if name in later and later[name] <= draft < UNNAMED:
        instead = {"additionalItems": "items", "dependencies": "dependentRequired and dependentSchemas"}[name]
        return f"{name} is a keyword of draft 7, which $schema would name; now {instead}"
    check, allowed = _KINDS[name]
    more = f"; {_TUPLE}" if name == "items" else ""
    return None if check(value) else f"{name}={shown(value)}: must be {allowed}{more}"
