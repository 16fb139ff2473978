"""The references of a JSON schema: where they lead, and what they become within another schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urljoin

from mindbatch.io.json_pointer import escaped, value_at

_OF_A_SCHEMA = (
    *("additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not"),
    *("propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"),
)
_OF_NAMED_SCHEMAS = (
    *("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"),
)
_OF_A_LIST = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
"""Keywords by what they hold; items holds either. Elsewhere, as in const or default, stand values."""
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_ANCHORS = ("$anchor", "$dynamicAnchor")
_NAMES = ("$id", "$recursiveAnchor", *_ANCHORS)


class _Resource(NamedTuple):
    """A schema that has an address, or the whole one, and its JSON pointer within the whole."""

    address: str
    pointer: str


class SchemaReferences:
    """Resolves the references within one schema, as the specification of JSON Schema has it: relative to
    the next schema around them that has an address, and by pointer, address or anchor."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._pointers: dict[str, str] = {}
        """By address, or address#anchor."""
        self._resources: dict[int, _Resource] = {}
        """By identity of a subschema, what its references are relative to."""
        self._index(schema, _Resource("", ""), "")
        self._pointers.setdefault("", "")

    def pointer(self, schema: Mapping[str, Any], reference: str) -> str | None:
        """The JSON pointer of what a reference in one of the subschemas means; None: nothing in here."""
        resource = self._resources.get(id(schema), _Resource("", ""))
        address, _, fragment = _joined(resource.address, reference).partition("#")
        if fragment and not fragment.startswith("/"):
            return self._pointers.get(f"{address}#{fragment}")
        base = resource.pointer if address == resource.address else self._pointers.get(address)
        return None if base is None else base + fragment

    def target(self, schema: Mapping[str, Any], reference: str) -> Any:
        """Looks up the schema that a reference means; None where that is nothing in here."""
        pointer = self.pointer(schema, reference)
        return None if pointer is None else value_at(self._schema, unquote(pointer))

    def rebased(self, prefix: str) -> Any:
        """A copy for a place in another schema. prefix: the pointer of that place.

        References become pointers from the other schema's root, and the names that they went by are left
        out. A reference to something that is not in here stays what it is.
        """
        return self._rebased(self._schema, prefix)

    def _index(self, schema: Any, resource: _Resource, pointer: str) -> None:
        if not isinstance(schema, Mapping):
            return
        name = schema.get("$id")
        anchors = [schema.get(key) for key in _ANCHORS]
        if isinstance(name, str) and name.startswith("#"):
            anchors.append(name[1:])  # as drafts before 2019 wrote an anchor
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
    """An address relative to another; of one that has no hierarchy, as urn:..., urljoin knows nothing."""
    if reference.startswith("#"):
        return address + reference
    try:
        return urljoin(address, reference)
    except ValueError:  # one of them is no URL
        return reference


def _children(schema: Mapping[str, Any]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The subschemas right below a schema, each with its keyword, and its key or index in that."""
    for key, value in schema.items():
        if key in _OF_A_SCHEMA and isinstance(value, Mapping):
            yield (key,), value
        elif key in _OF_NAMED_SCHEMAS and isinstance(value, Mapping):
            yield from (((key, name), child) for name, child in value.items())
        elif key in _OF_A_LIST and isinstance(value, list):
            yield from (((key, index), child) for index, child in enumerate(value))


def _escaped(key: Any) -> str:
    return escaped(str(key)).replace("%", "%25")
