"""What links do to arrays, done literally: what the tests of names share."""

from collections.abc import Mapping

import numpy as np

from mindbatch.checkpoint.names.correspondence import Correspondence


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


def numbered(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Tensors in which no element is like another one."""
    found, start = {}, 1
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        found[name] = np.arange(start, start + size, dtype=np.float32).reshape(shape)
        start += size
    return found
