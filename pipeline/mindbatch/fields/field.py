"""Declares a field of a schema: its default, kind, meaning and aliases."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mindbatch.fields.kinds import ValueKind

_FIELD = "field"


@dataclass(frozen=True)
class Need:
    """A condition on the other fields, without which a field has no effect.

    met: true of all values together where they fulfil it. missing: the field in the way where they do not.
    remedy: what to do then, but for removing what has no effect.
    """

    met: Callable[[Any], bool]
    missing: str
    remedy: str = ""


@dataclass(frozen=True)
class Field:
    """Declaration of a field.

    default: its value if the user sets none.
    kind: the allowed values.
    meaning: its line in help and in the documentation.
    topic: the heading of this field and the next ones in help.
    aliases: other names that set it.
    needs: conditions without which any value but the default is wrong.
    """

    default: Any
    kind: ValueKind
    meaning: str
    topic: str = ""
    aliases: tuple[str, ...] = ()
    needs: tuple[Need, ...] = ()


def declare(field: Field) -> Any:
    """Returns a dataclass field with this declaration.

    The return type is Any, as that of `dataclasses.field`: the annotation of the attribute is the type.
    """
    return dataclasses.field(default=field.default, metadata={_FIELD: field})


def declared_fields(schema: type) -> dict[str, Any]:
    """Returns the declarations of a dataclass by field name; sections have none."""
    fields = dataclasses.fields(schema)
    return {field.name: field.metadata[_FIELD] for field in fields if _FIELD in field.metadata}
