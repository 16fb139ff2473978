"""Arrays cut over rank files and copied by a plan: what the regions must mean."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mindbatch.checkpoint.placement.plan import TensorPlan
from mindbatch.checkpoint.placement.regions import RankFiles, Region

Array = NDArray[Any]
Ranks = list[dict[str, Array]]
UNTOUCHED = -1


def index(region: Region) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in region)


def numbered(shapes: Mapping[str, Sequence[int]]) -> dict[str, Array]:
    """Arrays of these shapes in which every element is a number of its own, none is 0."""
    found, first = {}, 1
    for name, shape in shapes.items():
        count = int(np.prod(shape))
        found[name] = np.arange(first, first + count).reshape(shape)
        first += count
    return found


def scattered(files: RankFiles, arrays: Mapping[str, Array]) -> Ranks:
    """The tensors of each rank's file, made literally of the full arrays."""
    found: Ranks = []
    dtype = next(iter(arrays.values())).dtype
    for tensors in files.ranks:
        made: dict[str, Array] = {}
        for name, stored in tensors.items():
            local = np.full(stored.shard.view, UNTOUCHED, dtype)
            for region in stored.shard.padding:
                local[index(region)] = 0
            for tensor, segment in stored.segments:
                part = arrays[tensor][index(segment.whole)]
                local[index(segment.local)] = part.T if segment.transposed else part
            assert UNTOUCHED not in local
            made[name] = local.reshape(stored.shard.shape)
        found.append(made)
    return found


def copied(plans: Sequence[TensorPlan], files: RankFiles, source: Ranks) -> Ranks:
    """What the copies make of the source's tensors; an element that nothing writes stays UNTOUCHED."""
    found: Ranks = [{} for _ in range(1 + max(plan.rank for plan in plans))]
    for plan in plans:
        local = np.full(plan.view, UNTOUCHED)
        for region in plan.padding:
            local[index(region)] = 0
        for copy in plan.copies:
            view = files.ranks[copy.source_rank][copy.source_name].shard.view
            part = source[copy.source_rank][copy.source_name].reshape(view)[index(copy.source)]
            local[index(copy.target)] = part.T if copy.transposed else part
        found[plan.rank][plan.name] = local.reshape(plan.shape)
    return found


def same(one: Any, other: Any) -> bool:
    """Whether two lists of ranks hold the same tensors of the same elements."""
    return len(one) == len(other) and all(
        a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)
        for a, b in zip(one, other, strict=True)
    )
