"""Whether a JSON value follows a schema: as much of JSON Schema as the tests use."""

import re
from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "null": (type(None),),
}


def follows(value: Any, schema: dict[str, Any]) -> bool:
    """Raises NotImplementedError for a keyword that is not checked."""
    checks = {
        "type": lambda name: (
            isinstance(value, _TYPES[name]) and isinstance(value, bool) <= (name == "boolean")
        ),
        "enum": lambda values: value in values,
        "const": lambda const: value == const,
        "anyOf": lambda schemas: any(follows(value, each) for each in schemas),
        "properties": lambda named: all(
            follows(value[name], each) for name, each in named.items() if name in value
        ),
        "required": lambda names: set(names) <= value.keys(),
        "additionalProperties": lambda allowed: allowed or value.keys() <= schema["properties"].keys(),
        "items": lambda each: all(follows(item, each) for item in value),
        "minItems": lambda least: len(value) >= least,
        "maxItems": lambda most: len(value) <= most,
        "minimum": lambda least: value >= least,
        "maximum": lambda most: value <= most,
        "pattern": lambda pattern: re.search(pattern, value) is not None,
        "maxLength": lambda most: len(value) <= most,
        "minLength": lambda least: len(value) >= least,
    }
    if unknown := schema.keys() - checks.keys():
        raise NotImplementedError(unknown)
    return all(checks[keyword](argument) for keyword, argument in schema.items())
