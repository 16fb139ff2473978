"""Arrays without equal items (`uniqueItems`), whose items can be listed: a grammar has each set of them."""

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Any

from mindbatch.decoding.json_schema.branches import ListedAs
from mindbatch.decoding.json_schema.numbers import NumberSet, exact, listed_numbers
from mindbatch.decoding.json_schema.terminals import Leaf

MAX_STEPS = 6000
"""Ways of going on from all sets of items that an array may have."""
UNLISTED = (
    "uniqueItems is supported where items are of an enum, of booleans or of integers between bounds, and "
    "have no prefixItems; maxItems is for others"
)
ItemKey = tuple[str, Any]
"""A type and a value of it: two items are equal where theirs are."""


@dataclass(frozen=True)
class UniqueArray:
    """members: of each value that an item may have, the terminals of its texts."""

    members: tuple[tuple[Leaf, ...], ...]
    min_count: int
    max_count: int

    @property
    def num_steps(self) -> int:
        size = len(self.members)
        return sum(comb(size, count) * (size - count) for count in range(self.max_count))

    def sets(self) -> Iterator[tuple[int, ...]]:
        """Members that an array may have so far, by number, the largest sets first."""
        for count in range(self.max_count, -1, -1):
            yield from combinations(range(len(self.members)), count)

    def pruned(self, empty_terminals: Set[str]) -> "UniqueArray | None":
        """Without members that have no text; None if too few are left."""
        kept = (tuple(leaf for leaf in leaves if leaf.text not in empty_terminals) for leaves in self.members)
        members = tuple(filter(None, kept))
        if self.min_count > len(members):
            return None
        return UniqueArray(members, self.min_count, min(self.max_count, len(members)))


def listed_values(
    types: Iterable[str], strings: Sequence[str] | None, numbers: NumberSet
) -> list[tuple[ItemKey, dict[Any, Any]]] | None:
    """Returns the values of some types, each with the keywords that allow it alone; None where they are not
    listed.

    strings: those of an enum, or None.
    """
    values_alone: list[tuple[ItemKey, dict[Any, Any]]] = []
    listed: dict[str, Sequence[Any] | None] = {
        "null": (None,),
        "boolean": (True, False),
        "number": listed_numbers(numbers),
        "string": strings,
    }
    kinds = {kind.value: kind for kind in ListedAs}
    for name in types:
        values = listed.get(name)
        if values is None:
            return None
        for value in values:
            alone: dict[Any, Any] = {"type": name}
            if name in kinds:
                alone[kinds[name]] = (value,)
            values_alone.append(((name, exact(value) if name == "number" else value), alone))
    return values_alone
