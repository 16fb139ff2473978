"""Weights packed from every type, and products in bfloat16 and int8, in every instruction set."""

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from kernel_runs import native_library, numbers
from numpy.typing import NDArray

from mindbatch.checkpoint.formats.floats import array_type, converted, widen
from mindbatch.kernels.memory import BFLOAT16, FLOAT32, INT8, NumberType
from mindbatch.kernels.native import NativeKernels
from mindbatch.kernels.native_library import NativeLibrary
from mindbatch.kernels.native_weights import PANEL, NativeWeights
from mindbatch.kernels.operations.dense import embedding, linear
from mindbatch.kernels.recording import Operation

Floats = NDArray[np.float32]
SHAPES = [(1, 8, 5), (2, 64, 32), (13, 257, 33), (29, 300, 97), (53, 700, 40), (700, 1600, 40)]

pytestmark = pytest.mark.usefixtures("library")


@pytest.fixture(params=[BFLOAT16, INT8], ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> NumberType:
    found: NumberType = request.param
    return found


def call(
    kind: NumberType, operation: Operation, inputs: Sequence[NDArray[Any]], y: Floats, **settings: Any
) -> None:
    """Calls the function of an operation over weights of a kind, as MindSpore does."""
    function = NativeKernels(native_library(), kind).functions.function(operation.name, **settings)
    assert function.settings is not None
    arrays = [*inputs, function.settings, y]
    count = len(arrays)
    shapes = [(ctypes.c_int64 * each.ndim)(*each.shape) for each in arrays]
    data = (ctypes.c_void_p * count)(*[each.ctypes.data for each in arrays])
    sizes = (ctypes.c_int * count)(*[each.ndim for each in arrays])
    pointers = (ctypes.c_void_p * count)(*map(ctypes.addressof, shapes))
    entry_point = getattr(native_library().handle, function.name)
    assert entry_point(count, data, sizes, pointers, None, None, None) == 0


def packed(weight: Floats, kind: NumberType) -> NDArray[Any]:
    """Written in two pieces, as a fused matrix is."""
    layout, half = NativeWeights(kind, native_library()), len(weight) // 2
    array = layout.zeros(*weight.shape)
    assert layout.pack(array, 0, weight[:half]) == layout.pack(array, half, weight[half:]) == 0
    return array


def product(x: Floats, weight: NDArray[Any], bias: Floats, kind: NumberType) -> Floats:
    y = np.empty((len(x), len(bias)), np.float32)
    call(kind, linear, [x, weight, bias], y, outputs=len(bias))
    return y


def bfloat16(x: Floats) -> Floats:
    """Rounded to nearest, ties to even."""
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def int8(x: Floats) -> tuple[Floats, Floats]:
    """Whole numbers to 127 of each row, and the rows' scales."""
    largest = np.abs(x).max(axis=1, keepdims=True)
    return np.rint(x / largest * 127), largest / 127


def expected(x: Floats, weight: Floats, bias: Floats, kind: NumberType) -> Floats:
    if kind == BFLOAT16:
        found: Floats = bfloat16(x) @ bfloat16(weight).T + bias
        return found
    (whole_x, scale_x), (whole, scale) = int8(x), int8(weight)
    return (whole_x @ whole.T) * scale_x * scale.T + bias


def every_variant() -> Iterator[str]:
    library = native_library()
    for name in library.variants:
        library.set_variant(name)
        yield name


@pytest.mark.parametrize(("rows", "depth", "columns"), SHAPES)
def test_every_instruction_set_gives_the_same_bits(
    rows: int, depth: int, columns: int, kind: NumberType
) -> None:
    x, weight, bias = numbers(rows, depth), numbers(columns, depth), numbers(columns)
    array, first = packed(weight, kind), None
    for variant in every_variant():
        found = product(x, array, bias, kind)
        np.testing.assert_allclose(
            found, expected(x, weight, bias, kind), atol=depth**0.5 * 1e-4, err_msg=variant
        )
        if variant == "amx" and kind == BFLOAT16:
            continue  # adds in another order
        first = found if first is None else first
        np.testing.assert_array_equal(found, first, err_msg=variant)


def test_rows_do_not_influence_one_another(kind: NumberType) -> None:
    """Bit for bit: what batched = alone rests on. Also beside a row that is not finite."""
    x, array, bias = numbers(83, 700), packed(numbers(70, 700), kind), numbers(70)
    x[3, 5], x[4, 6] = np.inf, np.nan
    for _ in every_variant():
        together = product(x, array, bias, kind)
        for row in range(len(x)):
            alone = product(x[row : row + 1], array, bias, kind)[0]
            np.testing.assert_array_equal(together[row], alone)
        assert not np.isfinite(together[3:5]).any()
        assert np.isfinite(np.delete(together, [3, 4], axis=0)).all()


@pytest.mark.parametrize(("depth", "columns"), [(1, 1), (33, 31), (95, 33), (129, 64), (700, 161)])
def test_few_rows_have_the_bits_that_they_have_among_many(depth: int, columns: int, kind: NumberType) -> None:
    """Kernels of their own compute them; numbers below the normal ones, in x and in sums, are among them."""
    x, weight = numbers(21, depth), numbers(columns, depth)
    x[2], weight[0] = numbers(depth) * 1e-38, weight[0] * 1e-30
    x[1, depth // 2], x[3, depth // 3] = np.inf, np.nan
    array, bias = packed(weight, kind), numbers(columns) * 1e-30
    for variant in every_variant():
        together = product(x, array, bias, kind)
        for rows in range(1, 7):
            found = product(x[:rows], array, bias, kind)
            np.testing.assert_array_equal(found, together[:rows], err_msg=f"{variant}, {rows} rows")


@pytest.mark.parametrize("bits", [0x7F800001, 0x7F80FFFF, 0xFF808000, 0x7FFFFFFF, 0xFFC00000])
@pytest.mark.parametrize("rows", [1, 5, 33])
def test_what_is_not_a_number_is_not_rounded_to_infinity(bits: int, rows: int) -> None:
    """Nor to a number: a payload may lie in the 16 bits alone that rounding takes away."""
    x, weight, bias = numbers(rows, 40), np.ones((3, 40), np.float32), numbers(3)
    x.view(np.uint32)[rows - 1, 7] = bits
    for variant in every_variant():
        found = product(x, packed(weight, BFLOAT16), bias, BFLOAT16)
        assert np.isnan(found[rows - 1]).all(), variant
        assert np.isfinite(found[: rows - 1]).all(), variant


def test_rows_of_nothing_but_zeros(kind: NumberType) -> None:
    x, weight, bias = numbers(3, 40), numbers(37, 40), numbers(37)
    x[1], weight[5] = 0, 0
    for _ in every_variant():
        found = product(x, packed(weight, kind), bias, kind)
        np.testing.assert_array_equal(found[1], bias)
        np.testing.assert_array_equal(found[:, 5], np.full(3, bias[5]))


def test_an_embedding_reads_the_rows_of_the_packed_matrix(kind: NumberType) -> None:
    """An id outside the table, which another rank holds, gives zeros."""
    weight = numbers(97, 20)
    ids = np.array([0, 96, 5, 32, -1, 10_000], np.int32)
    for _ in every_variant():
        y = np.empty((len(ids), 20), np.float32)
        call(kind, embedding, [ids, packed(weight, kind)], y, width=20)
        rows = bfloat16(weight) if kind == BFLOAT16 else np.multiply(*int8(weight))
        np.testing.assert_allclose(y[:4], rows[ids[:4]], rtol=1e-6)
        assert not y[4:].any()


def laid_out(numbers: NDArray[Any], depth: int) -> NDArray[np.uint8]:
    """[outputs, inputs] in panels: 4 bytes of each output side by side, zeros for what is padded."""
    group = 4 // numbers.itemsize
    whole = np.zeros((-(-len(numbers) // PANEL) * PANEL, depth), numbers.dtype)
    whole[: len(numbers), : numbers.shape[1]] = numbers
    panels = whole.reshape(-1, PANEL, depth // group, group).swapaxes(1, 2)
    return np.ascontiguousarray(panels).view(np.uint8).reshape(len(panels), -1)


def packed_bytes(weight: Floats, kind: NumberType) -> NDArray[np.uint8]:
    layout = NativeWeights(kind, native_library())
    array = layout.zeros(*weight.shape)
    assert layout.pack(array, 0, weight) == 0
    return array.view(np.uint8).reshape(len(array), -1)


def nearest_bfloat16(weight: Floats) -> NDArray[np.uint16]:
    bits = weight.view(np.uint32).astype(np.uint64)
    nearest = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(weight), bits >> 16 | 0x40, nearest).astype(np.uint16)


def nearest_int8(weight: Floats) -> NDArray[np.int8]:
    most = np.abs(weight).max(1, keepdims=True)
    rounded = np.rint(weight / most * np.float32(127))
    rounded[~np.isfinite(weight).all(1)] = 0
    return rounded.astype(np.int8)


@pytest.mark.parametrize("is_transposed", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize(("outputs", "inputs"), [(96, 128), (70, 75), (33, 64), (5, 3)])
def test_what_is_packed_is_what_numpy_rounds(outputs: int, inputs: int, is_transposed: bool) -> None:
    """In every instruction set; whole panels are packed otherwise than what is left over."""
    stored = numbers(inputs, outputs).T if is_transposed else numbers(outputs, inputs + 9)[:, 4:-5]
    stored[0, 0], stored[2, 1], stored[3, 2] = np.nan, -np.inf, 0
    weight = np.ascontiguousarray(stored)
    narrow = laid_out(nearest_bfloat16(weight), -(-inputs // 32) * 32)
    with np.errstate(invalid="ignore"):
        whole = laid_out(nearest_int8(weight), -(-inputs // 64) * 64)
    for variant in every_variant():
        np.testing.assert_array_equal(packed_bytes(stored, FLOAT32), laid_out(weight, inputs), variant)
        np.testing.assert_array_equal(packed_bytes(stored, BFLOAT16), narrow, variant)
        np.testing.assert_array_equal(packed_bytes(stored, INT8)[:, : whole.shape[1]], whole, variant)


def test_numbers_beyond_bfloat16_are_counted() -> None:
    weight = np.full((3, 4), 3.4e38, np.float32)
    weight[0, 1] = np.inf
    layout = NativeWeights(BFLOAT16, native_library())
    assert layout.pack(layout.zeros(3, 4), 0, weight) == 11


STORED = ("F32", "BF16", "F16")
PACKED_SHAPES = [(1, 1), (32, 64), (70, 200), (33, 63)]


def wide(stored: NDArray, dtype: str) -> NDArray[np.float32]:
    found = np.empty(stored.shape, np.float32)
    widen(stored, dtype, found)
    return found


def pack_all(library: NativeLibrary, kind: NumberType, rows: NDArray) -> tuple[bytes, int]:
    """In two calls that part inside a panel; and how many numbers were lost."""
    weights, half = NativeWeights(kind, library), len(rows) // 2
    array = weights.zeros(*rows.shape)
    lost = weights.pack(array, 0, rows[:half]) + weights.pack(array, half, rows[half:])
    return array.tobytes(), lost


@pytest.mark.parametrize("kind", [FLOAT32, BFLOAT16, INT8], ids=lambda kind: kind.name)
@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("shape", PACKED_SHAPES, ids=str)
@pytest.mark.parametrize("is_transposed", [False, True], ids=["rows", "columns"])
def test_the_stored_type_makes_no_difference(
    library: NativeLibrary, kind: NumberType, shape: tuple[int, int], dtype: str, is_transposed: bool
) -> None:
    drawn = (
        np.random.default_rng(7).standard_normal(shape[::-1] if is_transposed else shape).astype(np.float32)
    )
    stored = converted(drawn, "F32", dtype)[0].view(array_type(dtype))
    values = wide(stored, dtype)
    if is_transposed:  # as GPT-2's matrices are stored; and columns of a wider one
        stored, values = np.hstack([stored, stored])[:, : stored.shape[1]].T, values.T
    expected = None
    for variant in library.variants:
        library.set_variant(variant)
        expected = expected or pack_all(library, kind, np.ascontiguousarray(values))
        assert pack_all(library, kind, stored) == expected, variant


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
@pytest.mark.parametrize("is_transposed", [False, True], ids=["rows", "columns"])
def test_every_number_of_16_bits_is_widened_as_numpy_does(
    library: NativeLibrary, dtype: str, is_transposed: bool
) -> None:
    """Float32 weights hold them as they are: subnormal ones, infinities and both zeros, too."""
    every = np.arange(1 << 16, dtype=np.uint16).view(array_type(dtype)).reshape(1024, 64)
    values = wide(every, dtype)
    rows = np.asfortranarray(every) if is_transposed else every
    for variant in library.variants:
        library.set_variant(variant)
        found = np.frombuffer(pack_all(library, FLOAT32, rows)[0], np.float32)
        found = found.reshape(32, 64, 32).swapaxes(1, 2).reshape(1024, 64)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(values), variant)
        numbers = ~np.isnan(values)
        np.testing.assert_array_equal(
            found[numbers].view(np.uint32), values[numbers].view(np.uint32), variant
        )
