"""Operations as kernels run them: what is recorded of a function of symbols, run for arrays."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mindbatch.kernels.interface import Kernels, ProgramKernels
from mindbatch.kernels.native_library import NativeLibrary, find_library
from mindbatch.kernels.recording import Recording

Array = NDArray[Any]


def native_library() -> NativeLibrary:
    """The C++ kernels, of which the fixture `library` says that they are built."""
    found = find_library()
    assert found is not None
    return found


def numbers(*shape: int, scale: float = 1.0) -> NDArray[np.float32]:
    """Normal ones, the same for a shape."""
    return (np.random.default_rng(shape).standard_normal(shape) * scale).astype(np.float32)


def recording_of(compute: Callable[..., Any], *arrays: Array) -> Recording:
    """What a function calls for inputs like these arrays [rows, ...]."""
    recording = Recording()
    found = compute(*(recording.input(each.shape[1:], each.dtype) for each in arrays))
    recording.outputs.extend(found if isinstance(found, tuple) else (found,))
    return recording


def computed(kernels: ProgramKernels, compute: Callable[..., Any], *arrays: Array) -> list[Array]:
    """What kernels give for it."""
    program = kernels.program(kernels.lowered(recording_of(compute, *arrays)))
    return [each.copy() for each in program.run(arrays)]


def packed(kernels: Kernels, weight: Array) -> Array:
    """A matrix in the kernels' layout, written in two parts as a fused one is."""
    array = kernels.packed_zeros(*weight.shape)
    half = len(weight) // 2
    kernels.pack(array, 0, weight[:half])
    kernels.pack(array, half, weight[half:])
    return array


def packed_stack(kernels: Kernels, matrices: Array) -> Array:
    """[count, outputs, inputs] as a stack."""
    count, outputs, inputs = matrices.shape
    stack = kernels.packed_stack(count, outputs, inputs)
    for number, matrix in enumerate(matrices):
        kernels.pack(stack, number * kernels.stacked_outputs(outputs), np.ascontiguousarray(matrix))
    return stack
