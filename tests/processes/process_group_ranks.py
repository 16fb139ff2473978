"""SIZE processes of a process group in shared memory; prints what is wrong, nothing if all is well.

With a size of 1 its peer ends at once.
"""

import ctypes
import os
import secrets
import sys

import numpy as np
from numpy.typing import NDArray

from mindbatch.kernels.native import operation_layout
from mindbatch.kernels.native_library import find_library
from mindbatch.kernels.operations.dense import all_gather, all_reduce, receive_hidden, send_hidden
from mindbatch.kernels.recording import Operation
from mindbatch.kernels.settings import encoded
from mindbatch.parallel.shared_file import shared_file
from mindbatch.parallel.topology import TensorSlice

Array = NDArray[np.float32]
SHAPES = [(1, 1), (3, 7), (32, 768), (5, 70_001), (1, 300_000), (2, 262_144), (4, 300_000)]
ROUNDS = 40


def call(operation: Operation, x: Array, number: int, y: Array) -> int:
    """As MindSpore calls a custom operator; `number` is that of the group."""
    others = dict.fromkeys(("stage", "tensor_rank", "total", "width"), 0)
    words = encoded(operation_layout(operation.name), {**others, "shard": TensorSlice(), "group": number})
    library = find_library()
    assert library is not None
    arrays = (x, words, y)
    params = (ctypes.c_void_p * 3)(*(array.ctypes.data for array in arrays))
    sizes = [(ctypes.c_int64 * 2)(*array.shape) for array in arrays]
    shapes = (ctypes.POINTER(ctypes.c_int64) * 3)(
        *(ctypes.cast(s, ctypes.POINTER(ctypes.c_int64)) for s in sizes)
    )
    ndims = (ctypes.c_int * 3)(*(array.ndim for array in arrays))
    return int(getattr(library.handle, f"mb_{operation.name}")(3, params, ndims, shapes, None, None, None))


def part(rank: int, number: int, shape: tuple[int, int]) -> Array:
    return np.random.default_rng([rank, number, *shape]).standard_normal(shape, np.float32)


def errors_of(shard: TensorSlice, group: int, number: int, shape: tuple[int, int]) -> list[str]:
    parts = [part(rank, number, shape) for rank in range(shard.size)]
    total = parts[0].copy()
    for each in parts[1:]:
        total += each
    width = shard.size * shape[1] - (number % 2)  # one of padding in every other round
    summed, gathered = np.empty_like(total), np.empty((shape[0], width), np.float32)
    codes = (
        call(all_reduce, parts[shard.rank], group, summed),
        call(all_gather, parts[shard.rank], group, gathered),
    )
    is_same = summed.tobytes() == total.tobytes(), (gathered == np.concatenate(parts, 1)[:, :width]).all()
    return [] if codes == (0, 0) and all(is_same) else [f"rank {shard.rank}, {shape}: {codes} {is_same}"]


def joined(name: str, shard: TensorSlice) -> int:
    """The number of a group in this process."""
    library = find_library()
    assert library is not None
    file = shared_file(b"", name, shard, library.process_group_bytes(shard.size))
    try:
        return library.join_process_group(file, shard.rank, shard.size)
    finally:
        os.close(file)


def send_on(
    rank: int, before: int | None, after: int | None, number: int, shape: tuple[int, int]
) -> list[str]:
    """Receives what rank 0 began with from the rank before, and sends it to the one after."""
    began, codes = part(0, number, shape), []
    found = began if before is None else np.empty_like(began)
    if before is not None:
        codes.append(call(receive_hidden, np.empty((shape[0], 1), np.int32), before, found))
    if after is not None:
        codes.append(call(send_hidden, found, after, np.empty_like(found)))
    is_same = (found == began).all()
    return [] if is_same and not any(codes) else [f"rank {rank}, sent on {shape}: {codes} {is_same}"]


def take_part(shard: TensorSlice, name: str) -> int:
    rank, empty = shard.rank, np.zeros((1, 1), np.float32)
    functions = (all_reduce, all_gather, send_hidden, receive_hidden)
    faults = [f"{each.name} ran without a group" for each in functions if not call(each, empty, 0, empty)]
    group = joined(name, shard)
    before = None if rank == 0 else joined(f"{name}-{rank}", TensorSlice(1, 2))
    after = None if rank == shard.size - 1 else joined(f"{name}-{rank + 1}", TensorSlice(0, 2))
    for number in range(ROUNDS):
        for shape in SHAPES if number == 0 else SHAPES[:3]:
            faults += errors_of(shard, group, number, shape)
            faults += send_on(rank, before, after, number, shape)
    print(*faults, sep="\n", end="", flush=True)
    return int(bool(faults))


def left_alone() -> list[str]:
    """Waits for a process that has gone."""
    name = secrets.token_hex(8)
    child = os.fork()
    if child == 0:
        joined(name, TensorSlice(1, 2))
        os._exit(0)
    group, x = joined(name, TensorSlice(0, 2)), np.zeros((1, 1), np.float32)
    os.waitpid(child, 0)
    return [] if call(all_reduce, x, group, x.copy()) else ["a sum with a process that has gone"]


def main(size: int) -> int:
    if size == 1:
        print(*left_alone(), end="")
        return 0
    name, children = secrets.token_hex(8), []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            os._exit(take_part(TensorSlice(rank, size), name))
        children.append(child)
    return max(os.waitpid(child, 0)[1] for child in children)


if __name__ == "__main__":
    sys.exit(min(1, main(int(sys.argv[1]))))
