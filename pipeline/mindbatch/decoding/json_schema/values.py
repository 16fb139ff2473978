"""The values that a schema allows, by their JSON type: leaves, arrays and objects of further conjunctions."""

from dataclasses import dataclass

from mindbatch.decoding.json_schema.branches import Conjunction
from mindbatch.decoding.json_schema.terminals import Leaf
from mindbatch.decoding.json_schema.unique_items import UniqueArray


@dataclass(frozen=True)
class ArrayValue:
    """Arrays. prefix: what each of the first items fulfils. items: the others; None: there are none."""

    prefix: tuple[Conjunction | None, ...]
    items: Conjunction | None
    min_count: int
    max_count: int | None


@dataclass(frozen=True)
class Property:
    name: str
    key: Leaf
    value: Conjunction | None
    is_required: bool


@dataclass(frozen=True)
class ObjectValue:
    """Objects. properties: in the order in which they are written. others: names without a property of their
    own, each kind a terminal and what its values fulfil."""

    properties: tuple[Property, ...]
    others: tuple[tuple[Leaf, Conjunction], ...]
    min_count: int
    max_count: int | None
    pointer: str


Value = Leaf | ArrayValue | UniqueArray | ObjectValue
