"""What links and stored copies do to arrays, done literally: what the tests of names share."""

from collections.abc import Mapping, Sequence

import numpy as np

from mindbatch.checkpoint.names.correspondence import Correspondence
from mindbatch.checkpoint.names.stored_plan import StoredPlan


def slices(box):
    return tuple(slice(start, stop) for start, stop in box)


def stored_arrays(names: Correspondence, originals: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """MindFormers' tensors of the Hugging Face ones."""
    made = {name: np.full(names.view(name), -1.0, np.float32) for name in names.stored}
    for link in names.links:
        part = originals[link.original][slices(link.box)]
        made[link.stored][slices(link.place)] = part.T if link.transposed else part
    return {name: array.reshape(names.stored[name]) for name, array in made.items()}


def original_arrays(names: Correspondence, stored: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The other way."""
    made = {name: np.full(shape, -1.0, np.float32) for name, shape in names.originals.items()}
    for link in names.links:
        part = stored[link.stored].reshape(names.view(link.stored))[slices(link.place)]
        made[link.original][slices(link.box)] = part.T if link.transposed else part
    return made


def executed(
    plans: Sequence[StoredPlan],
    sources: Sequence[Mapping[str, np.ndarray]],
    names: Sequence[Correspondence | None],
) -> dict[int, dict[str, np.ndarray]]:
    """The target ranks' tensors."""
    found: dict[int, dict[str, np.ndarray]] = {}
    for plan in plans:
        made = np.zeros(plan.view, np.float32)
        for copy in plan.copies:
            array = sources[copy.source_rank][copy.source_name]
            rank_names = names[copy.source_rank]
            view = array if rank_names is None else array.reshape(rank_names.view(copy.source_name))
            part = view[slices(copy.source)]
            made[slices(copy.target)] = part.T if copy.transposed else part
        found.setdefault(plan.rank, {})[plan.name] = made.reshape(plan.shape)
    return found


def numbered(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Tensors in which no element is like another one."""
    found, start = {}, 1
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        found[name] = np.arange(start, start + size, dtype=np.float32).reshape(shape)
        start += size
    return found
