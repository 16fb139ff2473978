"""Declaration of a field of a schema: all that is said of it beside its name and its type."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mindbatch.fields.kinds import ValueKind

_DECLARED = "declared"


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

    default: the value where none is given.
    kind: the values allowed.
    meaning: its line in help and in the documentation.
    topic: what heads this field and the next ones in help.
    aliases: further names by which it can be given.
    needs: conditions without which any value but the default is wrong.
    """

    default: Any
    kind: ValueKind
    meaning: str
    topic: str = ""
    aliases: tuple[str, ...] = ()
    needs: tuple[Need, ...] = ()


def declare(field: Field) -> Any:
    """A field of a dataclass, of which this is said.

    Any, as `dataclasses.field` has it: the annotation of the class attribute is the type.
    """
    return dataclasses.field(default=field.default, metadata={_DECLARED: field})


def declared(schema: type) -> dict[str, Any]:
    """By name, what is said of each field of the dataclass, but for those that are sections."""
    fields = dataclasses.fields(schema)
    return {field.name: field.metadata[_DECLARED] for field in fields if _DECLARED in field.metadata}
