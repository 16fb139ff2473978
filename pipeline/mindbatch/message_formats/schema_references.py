"""Resolves the references of a JSON schema, and rewrites them for use within another schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urljoin

from mindbatch.io.json_pointer import escaped, value_at

_WITH_SCHEMA = (
    *("additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not"),
    *("propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"),
)
_WITH_NAMED_SCHEMAS = (
    *("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"),
)
_WITH_LIST = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
"""Keywords by the kind of their value; items may be a schema or a list. Others, as const, have values."""
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_ANCHORS = ("$anchor", "$dynamicAnchor")
_NAMES = ("$id", "$recursiveAnchor", *_ANCHORS)


class _Resource(NamedTuple):
    """A schema with an address, or the root, and its JSON pointer from the root."""

    address: str
    pointer: str


class SchemaReferences:
    """Resolves the references within one schema by JSON Schema's rules: relative to the nearest enclosing
    schema with an address, and by pointer, address or anchor."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._pointers: dict[str, str] = {}
        """JSON pointers by address or address#anchor."""
        self._resources: dict[int, _Resource] = {}
        """Resources to which the references of a subschema are relative, by its id()."""
        self._index(schema, _Resource("", ""), "")
        self._pointers.setdefault("", "")

    def pointer(self, schema: Mapping[str, Any], reference: str) -> str | None:
        """Returns the JSON pointer of a reference in a subschema; None if it leads out of this schema."""
        resource = self._resources.get(id(schema), _Resource("", ""))
        address, _, fragment = _joined(resource.address, reference).partition("#")
        if fragment and not fragment.startswith("/"):
            return self._pointers.get(f"{address}#{fragment}")
        base = resource.pointer if address == resource.address else self._pointers.get(address)
        return None if base is None else base + fragment

    def target(self, schema: Mapping[str, Any], reference: str) -> Any:
        """Returns the schema of a reference; None if it leads out of this schema."""
        pointer = self.pointer(schema, reference)
        return None if pointer is None else value_at(self._schema, unquote(pointer))

    def rebased(self, prefix: str) -> Any:
        """Copies the schema for use within another schema at the JSON pointer `prefix`.

        References become pointers from the other schema's root, and addresses and anchors are removed. A
        reference out of this schema stays unchanged.
        """
        return self._rebased(self._schema, prefix)

    def _index(self, schema: Any, resource: _Resource, pointer: str) -> None:
        if not isinstance(schema, Mapping):
            return
        name = schema.get("$id")
        anchors = [schema.get(key) for key in _ANCHORS]
        if isinstance(name, str) and name.startswith("#"):
            anchors.append(name[1:])  # an anchor in drafts before 2019
        elif isinstance(name, str) and name:
            resource = _Resource(_joined(resource.address, name).partition("#")[0], pointer)
            self._pointers.setdefault(resource.address, pointer)
        for anchor in anchors:
            if isinstance(anchor, str):
                self._pointers.setdefault(f"{resource.address}#{anchor}", pointer)
        self._resources[id(schema)] = resource
        for path, child in _children(schema):
            self._index(child, resource, "/".join((pointer, *map(_escaped, path))))

    def _rebased(self, schema: Any, prefix: str) -> Any:
        if not isinstance(schema, Mapping):
            return schema
        copy = {key: value for key, value in schema.items() if key not in _NAMES}
        for key in REFERENCES:
            if isinstance(reference := copy.get(key), str):
                pointer = self.pointer(schema, reference)
                copy[key] = reference if pointer is None else f"#{prefix}{pointer}"
        for path, child in _children(schema):
            key = path[0]
            if len(path) == 1:
                copy[key] = self._rebased(child, prefix)
                continue
            if copy[key] is schema[key]:
                copy[key] = copy[key].copy()
            copy[key][path[1]] = self._rebased(child, prefix)
        return copy


def _joined(address: str, reference: str) -> str:
    """Joins an address and a reference; urljoin does not support addresses without hierarchy (urn:...)."""
    if reference.startswith("#"):
        return address + reference
    try:
        return urljoin(address, reference)
    except ValueError:  # one of them is not a URL
        return reference


def _children(schema: Mapping[str, Any]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yields the direct subschemas with their path: the keyword, and the key or index in its value."""
    for key, value in schema.items():
        if key in _WITH_SCHEMA and isinstance(value, Mapping):
            yield (key,), value
        elif key in _WITH_NAMED_SCHEMAS and isinstance(value, Mapping):
            yield from (((key, name), child) for name, child in value.items())
        elif key in _WITH_LIST and isinstance(value, list):
            yield from (((key, index), child) for index, child in enumerate(value))


def _escaped(key: Any) -> str:
    return escaped(str(key)).replace("%", "%25")
