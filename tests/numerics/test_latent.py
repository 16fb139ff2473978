"""What latent attention computes beside attention: products with a matrix for each head, and heads joined."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mindbatch.kernels.interface import Kernels
from mindbatch.kernels.memory import BFLOAT16, FLOAT32, INT8, NumberType
from mindbatch.kernels.native import NativeKernels
from mindbatch.kernels.native_library import NativeLibrary, find_library
from mindbatch.kernels.program.program import Program
from mindbatch.kernels.program.recording import Recording, recorded
from mindbatch.kernels.shapes import HeadProductsShape

Floats = NDArray[np.float32]
SHAPES = [
    HeadProductsShape(5, 12, 0, 12, 33),
    HeadProductsShape(16, 21, 5, 16, 40),
    HeadProductsShape(2, 9, 3, 4, 70),
]
TOLERANCE = {FLOAT32: 1e-5, BFLOAT16: 0.03, INT8: 0.1}


@pytest.fixture(scope="module")
def library() -> NativeLibrary:
    found = find_library()
    if found is None:
        pytest.skip("the kernels are not built")
    return found


def numbers(*shape: int) -> Floats:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def packed(kernels: Kernels, matrices: Floats) -> Any:
    """[heads, outputs, inputs] as a stack."""
    heads, outputs, inputs = matrices.shape
    stack = kernels.packed_stack(heads, outputs, inputs)
    for head, matrix in enumerate(matrices):
        kernels.pack(stack, head * kernels.stacked_outputs(outputs), matrix)
    return stack


def expected(shape: HeadProductsShape, x: Floats, matrices: Floats) -> NDArray[np.float64]:
    heads = x[:, : shape.heads * shape.stride].reshape(len(x), shape.heads, shape.stride)
    heads = heads[:, :, shape.first : shape.first + shape.inputs].astype(np.float64)
    return np.einsum("thi,hoi->tho", heads, matrices).reshape(len(x), -1)


@pytest.mark.parametrize("kind", TOLERANCE, ids=lambda kind: kind.name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_are_what_their_heads_say_whatever_is_beside(
    library: NativeLibrary, shape: HeadProductsShape, kind: NumberType
) -> None:
    kernels = NativeKernels(library, kind)
    matrices = numbers(shape.heads, shape.outputs, shape.inputs) / shape.inputs**0.5
    recording, width = Recording(), shape.heads * shape.stride + 3
    x = recording.input((width,), np.float32)
    recorded(kernels.head_products(shape), recording, x, packed(kernels, matrices))
    program, given = Program(recording, library), numbers(40, width)
    together = program.run([given])[0]
    assert np.abs(together - expected(shape, given, matrices)).max() < TOLERANCE[kind]
    parts = [program.run([given[first:last]])[0] for first, last in pairwise((0, 1, 2, 7, 40))]
    assert np.concatenate(parts).tobytes() == together.tobytes()


@pytest.mark.slow
def test_the_reference_and_ascend_give_the_same() -> None:
    import mindspore
    from mindspore import Tensor

    from mindbatch.kernels.ascend.kernels import AscendKernels
    from mindbatch.kernels.reference import ReferenceKernels
    from mindbatch.parallel.context import initialise

    initialise("CPU")
    queries, absorbed, keys, latents = numbers(6, 20), numbers(6, 14), numbers(6, 9), numbers(6, 7)
    rotated = queries[:, 16:].reshape(6, 2, 2)
    heads = np.concatenate((rotated, absorbed.reshape(6, 2, 7)), 2).reshape(6, -1)
    key = np.concatenate((keys[:, 7:], latents), 1)
    for kernels in (ReferenceKernels(), AscendKernels(FLOAT32)):
        for shape in SHAPES:
            matrices = numbers(shape.heads, shape.outputs, shape.inputs)
            x = numbers(3, shape.heads * shape.stride + 3)
            stack = mindspore.Tensor.from_numpy(packed(kernels, matrices))
            found = kernels.head_products(shape)(Tensor(x), stack).asnumpy()
            np.testing.assert_allclose(found, expected(shape, x, matrices), atol=1e-4)
        joined = kernels.latent_heads(2, 2)(*map(Tensor, (queries, absorbed, keys, latents)))
        np.testing.assert_array_equal(joined.asnumpy(), np.concatenate((heads, key, key), 1))
        np.testing.assert_array_equal(kernels.columns(1, 3)(Tensor(keys)).asnumpy(), keys[:, 1:4])


def test_what_lies_outside_a_row_is_refused(library: NativeLibrary) -> None:
    kernels, recording = NativeKernels(library), Recording()
    x = recording.input((4,), np.float32)
    shape = HeadProductsShape(2, 3, 0, 3, 2)
    recorded(kernels.head_products(shape), recording, x, packed(kernels, numbers(2, 2, 3)))
    with pytest.raises(RuntimeError, match="mb_head_products failed"):
        Program(recording, library).run([numbers(1, 4)])
