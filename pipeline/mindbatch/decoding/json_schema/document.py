"""A schema's document: its subschemas by number, and what references in it point to."""

from typing import Any, NamedTuple
from urllib.parse import unquote

from mindbatch.decoding.json_schema.errors import SchemaError
from mindbatch.decoding.json_schema.keywords import DRAFT_7, draft_of, keyword_errors, keywords_of
from mindbatch.io.error_lines import shown
from mindbatch.io.json_pointer import escaped, value_at

_HOLD_VALUES = frozenset({"const", "default", "enum", "examples"})
"""Keywords whose value is no schema, whatever it looks like."""
_BY_NAME = frozenset(
    {"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"}
)
"""Keywords whose value has a schema for each name."""


class Subschema(NamedTuple):
    keywords: dict[str, Any]
    pointer: str
    """Its location, as a reference of the document."""


class Document:
    """Numbers subschemas on first use, and checks the keywords of each once."""

    def __init__(self, root: dict[str, Any]) -> None:
        self.root = root
        self.draft = draft_of(root)
        self.subschemas: list[Subschema] = []
        self.errors: list[str] = []
        """Errors in keywords of all numbered subschemas, which then allow anything."""
        self._originals: list[dict[str, Any]] = []  # kept, as their addresses are their names
        self._numbers: dict[int, int] = {}
        self._identity = root.get("$id") if isinstance(root.get("$id"), str) else ""
        self._anchors: dict[str, Subschema] = {}
        self._nested_identity: str | None = None
        self._note_anchors(root, "#")

    def number(self, schema: dict[str, Any], pointer: str) -> int:
        """Returns the number of a subschema; equal ones at other pointers have other numbers."""
        number = self._numbers.get(id(schema))
        if number is None:
            keywords = keywords_of(schema, self.draft)
            errors = keyword_errors(keywords, pointer, self.draft)
            self.errors += errors
            number = self._numbers[id(schema)] = len(self.subschemas)
            self.subschemas.append(Subschema({} if errors else _with_tag(keywords), pointer))
            self._originals.append(schema)
        return number

    def resolved(self, reference: str, pointer: str) -> tuple[Any, str]:
        """Returns the schema that a reference points to, and where it stands."""
        if self._nested_identity is not None:
            raise SchemaError(self._nested_identity, "an $id below the top is not supported beside $ref")
        address, _, fragment = reference.partition("#")
        if address and address != (self._identity or "").partition("#")[0]:
            wanted = "only references into the schema itself are supported, such as #/$defs/NAME"
            raise SchemaError(pointer, f"$ref={shown(reference)}: {wanted}")
        fragment = unquote(fragment)
        if fragment in self._anchors:
            return self._anchors[fragment]
        if fragment and not fragment.startswith("/"):
            raise SchemaError(pointer, f"$ref={shown(reference)}: the schema has no such anchor")
        value = value_at(self.root, fragment)
        if isinstance(value, list):
            raise SchemaError(pointer, f"$ref={shown(reference)}: a list stands there, and no schema")
        if not isinstance(value, dict | bool):
            raise SchemaError(pointer, f"$ref={shown(reference)}: the schema has nothing there")
        return value, f"#{fragment}"

    def _note_anchors(self, value: Any, pointer: str) -> None:
        if isinstance(value, list):
            for index, item in enumerate(value):
                self._note_anchors(item, f"{pointer}/{index}")
        if not isinstance(value, dict):
            return
        self._note_identity(value, pointer)
        for key, item in value.items():
            below = f"{pointer}/{escaped(key)}"
            if key in _BY_NAME and isinstance(item, dict):
                for name, named in item.items():
                    self._note_anchors(named, f"{below}/{escaped(name)}")
            elif key not in _HOLD_VALUES:
                self._note_anchors(item, below)

    def _note_identity(self, value: dict[str, Any], pointer: str) -> None:
        names = [value.get("$anchor"), value.get("$dynamicAnchor")]
        identity = value.get("$id")
        if isinstance(identity, str) and value is not self.root:
            if self.draft == DRAFT_7 and identity.startswith("#"):
                names.append(identity[1:])
            else:
                self._nested_identity = pointer
        for name in names:
            if isinstance(name, str):
                self._anchors[name] = Subschema(value, pointer)


def _with_tag(keywords: dict[str, Any]) -> dict[str, Any]:
    """Keywords, with the property that tells alternatives apart required: OpenAPI, of which `discriminator`
    is, asks for that, and programs leave it out where the property has a default."""
    tag = keywords.get("discriminator")
    name = tag.get("propertyName") if isinstance(tag, dict) else None
    if not isinstance(name, str) or not {"anyOf", "oneOf"} & keywords.keys():
        return keywords
    return {**keywords, "required": [*keywords.get("required", []), name]}
