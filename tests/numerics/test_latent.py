"""What latent attention computes beside attention: products with a matrix for each head, and heads joined."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from kernel_runs import computed, packed_stack
from numpy.typing import NDArray

from mindbatch.kernels.memory import BFLOAT16, FLOAT32, INT8, NumberType
from mindbatch.kernels.native import NativeKernels
from mindbatch.kernels.native_library import NativeLibrary, find_library
from mindbatch.kernels.operations.attention import head_products, latent_heads
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
    given, stack = numbers(40, shape.heads * shape.stride + 3), packed_stack(kernels, matrices)

    def products(x: Any) -> Any:
        return head_products(x, stack, shape=shape)

    together = computed(kernels, products, given)[0]
    assert np.abs(together - expected(shape, given, matrices)).max() < TOLERANCE[kind]
    parts = [computed(kernels, products, given[first:last])[0] for first, last in pairwise((0, 1, 2, 7, 40))]
    assert np.concatenate(parts).tobytes() == together.tobytes()


@pytest.mark.slow
def test_numpy_and_ascend_give_the_same() -> None:
    from mindspore import Tensor

    from mindbatch.kernels.ascend.kernels import AscendKernels
    from mindbatch.parallel.context import initialise

    initialise("CPU")
    queries, absorbed, keys, latents = numbers(6, 20), numbers(6, 14), numbers(6, 9), numbers(6, 7)
    rotated = queries[:, 16:].reshape(6, 2, 2)
    heads = np.concatenate((rotated, absorbed.reshape(6, 2, 7)), 2).reshape(6, -1)
    key = np.concatenate((keys[:, 7:], latents), 1)
    joined, kernels = np.concatenate((heads, key, key), 1), AscendKernels(FLOAT32)
    for shape in SHAPES:
        matrices = numbers(shape.heads, shape.outputs, shape.inputs)
        x = numbers(3, shape.heads * shape.stride + 3)
        stack = Tensor.from_numpy(packed_stack(kernels, matrices))
        found = kernels.cell("head_products", shape=shape)(Tensor(x), stack).asnumpy()
        np.testing.assert_allclose(found, expected(shape, x, matrices), atol=1e-4)
        by_numpy = head_products(x, matrices, shape=shape)
        np.testing.assert_allclose(by_numpy, expected(shape, x, matrices), atol=1e-4)
    given = (queries, absorbed, keys, latents)
    cell = kernels.cell("latent_heads", heads=2, rope=2)
    np.testing.assert_array_equal(cell(*map(Tensor, given)).asnumpy(), joined)
    np.testing.assert_array_equal(latent_heads(*given, heads=2, rope=2), joined)


def test_what_lies_outside_a_row_is_refused(library: NativeLibrary) -> None:
    kernels, shape = NativeKernels(library), HeadProductsShape(2, 3, 0, 3, 2)
    stack = packed_stack(kernels, numbers(2, 2, 3))
    with pytest.raises(RuntimeError, match="mb_head_products failed"):
        computed(kernels, lambda x: head_products(x, stack, shape=shape), numbers(1, 4))
