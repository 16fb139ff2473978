"""Matrices packed from every type that files store: the same bytes as from the float32 of the same values."""

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from mindbatch.checkpoint.formats.floats import array_type, converted, widen
from mindbatch.kernels.memory import BFLOAT16, FLOAT32, INT8, NumberType
from mindbatch.kernels.native_library import NativeLibrary, find_library
from mindbatch.kernels.native_weights import NativeWeights

STORED = ("F32", "BF16", "F16")
SHAPES = [(1, 1), (32, 64), (70, 200), (33, 63)]


@pytest.fixture(params=[FLOAT32, BFLOAT16, INT8], ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> NumberType:
    found: NumberType = request.param
    return found


@pytest.fixture
def library() -> Iterator[NativeLibrary]:
    found = find_library()
    if found is None:
        pytest.skip("the C++ kernels were not built")
    before = found.variant
    yield found
    found.set_variant(before)


def wide(stored: NDArray, dtype: str) -> NDArray[np.float32]:
    found = np.empty(stored.shape, np.float32)
    widen(stored, dtype, found)
    return found


def packed(library: NativeLibrary, kind: NumberType, rows: NDArray) -> tuple[bytes, int]:
    """In two calls that part inside a panel; and how many numbers were lost."""
    weights, half = NativeWeights(kind, library), len(rows) // 2
    array = weights.zeros(*rows.shape)
    lost = weights.pack(array, 0, rows[:half]) + weights.pack(array, half, rows[half:])
    return array.tobytes(), lost


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("is_turned", [False, True], ids=["rows", "columns"])
def test_the_stored_type_makes_no_difference(
    library: NativeLibrary, kind: NumberType, shape: tuple[int, int], dtype: str, is_turned: bool
) -> None:
    drawn = np.random.default_rng(7).standard_normal(shape[::-1] if is_turned else shape).astype(np.float32)
    stored = converted(drawn, "F32", dtype)[0].view(array_type(dtype))
    values = wide(stored, dtype)
    if is_turned:  # as GPT-2's matrices are stored; and columns of a wider one
        stored, values = np.hstack([stored, stored])[:, : stored.shape[1]].T, values.T
    expected = None
    for variant in library.variants:
        library.set_variant(variant)
        expected = expected or packed(library, kind, np.ascontiguousarray(values))
        assert packed(library, kind, stored) == expected, variant


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
@pytest.mark.parametrize("is_turned", [False, True], ids=["rows", "columns"])
def test_every_number_of_16_bits_is_widened_as_numpy_does(
    library: NativeLibrary, dtype: str, is_turned: bool
) -> None:
    """Float32 weights hold them as they are: subnormal ones, infinities and both zeros, too."""
    every = np.arange(1 << 16, dtype=np.uint16).view(array_type(dtype)).reshape(1024, 64)
    values = wide(every, dtype)
    rows = np.asfortranarray(every) if is_turned else every
    for variant in library.variants:
        library.set_variant(variant)
        found = np.frombuffer(packed(library, FLOAT32, rows)[0], np.float32)
        found = found.reshape(32, 64, 32).swapaxes(1, 2).reshape(1024, 64)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(values), variant)
        numbers = ~np.isnan(values)
        np.testing.assert_array_equal(
            found[numbers].view(np.uint32), values[numbers].view(np.uint32), variant
        )
