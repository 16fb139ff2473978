"""The values that a schema allows, as a graph: which of its nodes have any value at all."""

from collections.abc import Iterable, Iterator, Sequence, Set
from itertools import chain

from mindbatch.decoding.json_schema.branches import Branches, Conjunction
from mindbatch.decoding.json_schema.errors import SchemaError
from mindbatch.decoding.json_schema.terminals import Leaf
from mindbatch.decoding.json_schema.types import TypedValues
from mindbatch.decoding.json_schema.unique_items import UniqueArray
from mindbatch.decoding.json_schema.values import ArrayValue, ObjectValue, Value

MAX_PARTS = 20_000
"""Conjunctions of subschemas in one schema, their alternatives, and the parts of these."""
MAX_CHARACTERS = 4 << 20
"""Characters of all terminals."""


class SchemaGraph:
    """Nodes are conjunctions of subschemas: what one value has to fulfil."""

    def __init__(self, branches: Branches, types: TypedValues) -> None:
        self.values: dict[Conjunction, list[Value]] = {}
        self._branches = branches
        self._types = types
        self._size = self._num_characters = 0

    def explore(self, node: Conjunction) -> None:
        """Adds a node and all that its values are made of."""
        waiting = [node]
        while waiting:
            node = waiting.pop()
            if node in self.values:
                continue
            branches = self._branches.of(node)
            self.values[node] = [value for branch in branches for value in self._types.of(branch)]
            parts = [part for value in self.values[node] for part in _parts(value)]
            self._size += 1 + len(branches) + len(parts)
            self._num_characters += sum(len(leaf.text) for leaf in self._leaves_of(node))
            if self._size > MAX_PARTS or self._num_characters > MAX_CHARACTERS:
                raise SchemaError("#", "it is too large, with the combinations of its parts written out")
            waiting += reversed(parts)

    def doubtful(self) -> list[str]:
        """Terminals that may be empty."""
        leaves = (leaf for node in self.values for leaf in self._leaves_of(node))
        return list(dict.fromkeys(leaf.text for leaf in leaves if leaf.may_be_empty))

    def _leaves_of(self, node: Conjunction) -> Iterator[Leaf]:
        return (leaf for value in self.values[node] for leaf in _leaves(value))

    def productive(self, empty_terminals: Set[str]) -> dict[Conjunction, list[Value]]:
        """Returns the values that have a text: the least fixed point, as a value that contains itself has
        none."""
        alive: set[Conjunction] = set()
        waiting, size = [*reversed(self.values)], -1
        while len(alive) > size:
            size = len(alive)
            for node in waiting:
                if any(pruned(value, alive, empty_terminals) for value in self.values[node]):
                    alive.add(node)
            waiting = [node for node in waiting if node not in alive]
        return {
            node: [kept for value in values if (kept := pruned(value, alive, empty_terminals))]
            for node, values in self.values.items()
        }


def pruned(value: Value, alive: Set[Conjunction], empty_terminals: Set[str]) -> Value | None:
    """Returns the value without parts that have no text; None if it has none itself."""
    if isinstance(value, Leaf):
        return None if value.text in empty_terminals else value
    if isinstance(value, UniqueArray):
        return value.pruned(empty_terminals)
    if isinstance(value, ArrayValue):
        return _pruned_array(value, alive)
    return _pruned_object(value, alive, empty_terminals)


def _pruned_array(array: ArrayValue, alive: Set[Conjunction]) -> ArrayValue | None:
    max_count, items = array.max_count, array.items if array.items in alive else None
    longest = next((n for n, part in enumerate(array.prefix) if part not in alive), None)
    if longest is None and items is None:
        longest = len(array.prefix)
    if longest is not None:
        max_count = longest if max_count is None else min(max_count, longest)
    if max_count is not None and array.min_count > max_count:
        return None
    return ArrayValue(array.prefix[:max_count], items, array.min_count, max_count)


def _pruned_object(
    value: ObjectValue, alive: Set[Conjunction], empty_terminals: Set[str]
) -> ObjectValue | None:
    properties = tuple(
        part for part in value.properties if part.value in alive and part.key.text not in empty_terminals
    )
    required = sum(part.is_required for part in properties)
    if required < sum(part.is_required for part in value.properties):
        return None
    others = tuple(
        (name, part) for name, part in value.others if part in alive and name.text not in empty_terminals
    )
    min_count, max_count = value.min_count, value.max_count
    if (max_count is not None and max_count < max(required, min_count)) or (
        not others and min_count > len(properties)
    ):
        return None
    if others and min_count > required + 1:
        raise SchemaError(
            value.pointer,
            f"minProperties={min_count} is not supported where names are free: they may come twice; it is "
            "beside additionalProperties=false",
        )
    if not others and max_count is not None and max_count >= len(properties):
        max_count = None
    return ObjectValue(
        properties, others, 0 if min_count <= required else min_count, max_count, value.pointer
    )


def _parts(value: Value) -> Iterator[Conjunction]:
    """Conjunctions of the parts of a value."""
    parts: Iterable[Conjunction | None] = ()
    if isinstance(value, ArrayValue):
        parts = (*value.prefix, value.items)
    elif isinstance(value, ObjectValue):
        parts = (*(part.value for part in value.properties), *(part for _, part in value.others))
    return (part for part in parts if part is not None)


def _leaves(value: Value) -> Iterable[Leaf]:
    if isinstance(value, Leaf):
        return (value,)
    if isinstance(value, ArrayValue):
        return ()
    if isinstance(value, UniqueArray):
        return chain.from_iterable(value.members)
    return (*(part.key for part in value.properties), *(name for name, _ in value.others))


def reason(
    before: dict[Conjunction, list[Value]], after: dict[Conjunction, list[Value]], node: Conjunction
) -> str:
    """Returns the required part that has no value, as words that follow; nothing where there are several."""
    path, seen = "", {node}
    while len(before[node]) == 1 and (part := _dead_part(before[node][0], after)):
        step, wanted = part
        path += f"/{step}"
        if wanted is None:
            break
        if wanted in seen:
            return f": the value of {path} has to contain itself"
        seen.add(wanted)
        node = wanted
    return f": {path} has no value" if path else ""


def _dead_part(
    value: Value, after: dict[Conjunction, list[Value]]
) -> tuple[str | int, Conjunction | None] | None:
    parts: Sequence[tuple[str | int, Conjunction | None]] = []
    if isinstance(value, ObjectValue):
        parts = [(part.name, part.value) for part in value.properties if part.is_required]
    elif isinstance(value, ArrayValue):
        items = [*value.prefix, *[value.items] * (value.min_count > len(value.prefix))]
        parts = list(enumerate(items))[: value.min_count]
    return next((part for part in parts if part[1] is None or not after[part[1]]), None)
