"""What names do to arrays, done literally: what the tests of names share."""

from collections.abc import Mapping

import numpy as np

from mindbatch.checkpoint.placement.regions import RankFiles


def slices(region):
    return tuple(slice(start, stop) for start, stop in region)


def stored_arrays(names: RankFiles, originals: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """MindFormers' tensors of the Hugging Face ones."""
    [tensors] = names.ranks
    made = {name: np.full(stored.shard.view, -1.0, np.float32) for name, stored in tensors.items()}
    for tensor, (_, name, segment) in names.locations():
        part = originals[tensor][slices(segment.whole)]
        made[name][slices(segment.local)] = part.T if segment.transposed else part
    return {name: array.reshape(tensors[name].shard.shape) for name, array in made.items()}


def original_arrays(names: RankFiles, stored: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The other way."""
    [tensors] = names.ranks
    made = {name: np.full(shape, -1.0, np.float32) for name, shape in names.shapes.items()}
    for tensor, (_, name, segment) in names.locations():
        part = stored[name].reshape(tensors[name].shard.view)[slices(segment.local)]
        made[tensor][slices(segment.whole)] = part.T if segment.transposed else part
    return made


def numbered(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Tensors in which no element is like another one."""
    found, start = {}, 1
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        found[name] = np.arange(start, start + size, dtype=np.float32).reshape(shape)
        start += size
    return found
