"""Arrays cut over ranks by a placement and moved by a plan: what the integers must mean."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mindbatch.checkpoint.placement.placement import Placement, Placements
from mindbatch.checkpoint.placement.plan import ReshardPlan
from mindbatch.checkpoint.placement.regions import Region

Array = NDArray[np.int64]
Ranks = list[dict[str, Array]]
UNTOUCHED = -1


def index(box: Region) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in box)


def numbered(shapes: Mapping[str, Sequence[int]]) -> dict[str, Array]:
    """Arrays of these shapes in which every element is a number of its own, none is 0."""
    found, first = {}, 1
    for name, shape in shapes.items():
        count = int(np.prod(shape))
        found[name] = np.arange(first, first + count).reshape(shape)
        first += count
    return found


def cut(placement: Placement, array: Array) -> list[Array | None]:
    """What each rank holds of the array."""
    found: list[Array | None] = []
    for shard in placement.shards:
        if shard is None:
            found.append(None)
            continue
        local = np.full(shard.shape, UNTOUCHED)
        for box in shard.padding:
            local[index(box)] = 0
        for piece in shard.segments:
            local[index(piece.local)] = array[index(piece.whole)]
        assert UNTOUCHED not in local
        found.append(local)
    return found


def scattered(placements: Placements, arrays: Mapping[str, Array]) -> Ranks:
    """The tensors of each rank."""
    held = {name: cut(placement, arrays[name]) for name, placement in placements.items()}
    count = max(len(shards) for shards in held.values())
    return [
        {name: local for name, shards in held.items() if (local := shards[rank]) is not None}
        for rank in range(count)
    ]


def moved_by(plan: ReshardPlan, source: Ranks) -> Ranks:
    """What the plan makes of the source's tensors; an element that nothing writes stays UNTOUCHED."""
    count = max(len(placement.shards) for placement in plan.target.values())
    found: Ranks = [{} for _ in range(count)]
    for tensor in plan.tensors:
        local = np.full(tensor.shape, UNTOUCHED)
        for box in tensor.padding:
            local[index(box)] = 0
        for copy in tensor.copies:
            local[index(copy.target)] = source[copy.source_rank][tensor.name][index(copy.source)]
        found[tensor.rank][tensor.name] = local
    return found


def same(one: Any, other: Any) -> bool:
    """Whether two lists of ranks hold the same tensors of the same elements."""
    return len(one) == len(other) and all(
        a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)
        for a, b in zip(one, other, strict=True)
    )
