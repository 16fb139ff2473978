"""Whole files: values against the safetensors library, truncation, bit flips, and memory."""

import os
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import save_file
from safetensors_writer import bfloat16_bits, entry, file_bytes, safetensors_bytes

from mindbatch.checkpoint.formats.floats import (
    array_type,
    converted,
    read_values,
)
from mindbatch.checkpoint.formats.safetensors_file import open_safetensors
from mindbatch.checkpoint.formats.stored import StoredFile
from mindbatch.io.errors import CheckpointError

SMALL: dict[str, npt.NDArray[Any]] = {
    "layer.0.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "layer.0.bias": bfloat16_bits([1.5, -2.0, 0.25]),
    "layer.1.weight": np.array([[0.5, -0.25]], np.float16),
}
SMALL_BYTES = safetensors_bytes(SMALL)
Opener = Callable[[bytes], StoredFile]


@pytest.fixture
def opened(tmp_path: Path) -> Opener:
    def open_bytes(content: bytes) -> StoredFile:
        path = tmp_path / "w.safetensors"
        path.unlink(missing_ok=True)  # a file that was opened before keeps its own
        path.write_bytes(content)
        return open_safetensors(path)

    return open_bytes


names = st.text(st.characters(categories=["Ll", "Nd"], include_characters="._"), min_size=1).filter(
    lambda name: ".." not in name and name.isprintable() and name != "__metadata__"
)
arrays = hnp.arrays(
    st.sampled_from([np.float32, np.float16, np.float64, np.int64, np.int8, np.bool_]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
)


@given(st.dictionaries(names, arrays, max_size=5))
def test_reads_what_the_library_writes(tmp_path: Path, tensors: dict[str, npt.NDArray[Any]]) -> None:
    path = tmp_path / "w.safetensors"
    path.unlink(missing_ok=True)
    save_file(tensors, path)
    file = open_safetensors(path)
    assert set(file.tensors) == set(tensors)
    for name, array in tensors.items():
        assert file.info(name).shape == array.shape
        assert b"".join(file.chunks(name)) == array.tobytes()
        if array.dtype in (np.float32, np.float16):
            with np.errstate(invalid="ignore"):
                np.testing.assert_array_equal(read_values(file, name), array.astype(np.float32))


@given(hnp.arrays(np.uint16, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6)))
def test_every_bfloat16_bit_pattern_is_widened_exactly(opened: Opener, bits: npt.NDArray[np.uint16]) -> None:
    file = opened(safetensors_bytes({"x": bits}))
    expected = bits.astype(np.uint32) << 16
    assert np.array_equal(read_values(file, "x").view(np.uint32), expected)


@given(
    hnp.array_shapes(min_dims=1, max_dims=3, max_side=9), st.sampled_from(["F32", "F16", "BF16"]), st.data()
)
def test_rows_and_columns_in_pieces_of_any_size(
    opened: Opener, shape: tuple[int, ...], dtype: str, data: st.DataObject
) -> None:
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) % 251  # exact in all three
    stored = converted(values, "F32", dtype)[0].view(array_type(dtype))
    parts = [
        slice(start := data.draw(st.integers(0, size)), data.draw(st.integers(start, size)))
        for size in (shape if len(shape) == 2 else shape[:1])
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mindbatch.checkpoint.formats.floats.SLICE_BYTES", data.draw(st.integers(4, 64)))
        patch.setattr("mindbatch.checkpoint.formats.floats.GAP_BYTES", data.draw(st.integers(0, 36)))
        file = opened(safetensors_bytes({"x": stored}))
        part, whole = read_values(file, "x", *parts, is_widened=False), read_values(file, "x")
        np.testing.assert_array_equal(read_values(file, "x", *parts), values[tuple(parts)])
        assert b"".join(file.chunks("x")) == stored.tobytes()
    assert part.dtype == stored.dtype
    np.testing.assert_array_equal(part, stored[tuple(parts)])
    np.testing.assert_array_equal(whole, values)


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.int8, np.bool_])
def test_float32_of_another_dtype_is_refused(opened: Opener, dtype: type) -> None:
    file = opened(safetensors_bytes({"x": np.zeros(3, dtype)}))
    with pytest.raises(CheckpointError, match=r"w.safetensors: tensor 'x': dtype .*; needed F32, F16, BF16"):
        read_values(file, "x")


@pytest.mark.parametrize(
    ("name", "rows", "columns"),
    [
        ("matrix", slice(0, 5), None),
        ("matrix", slice(-1, None), None),
        ("matrix", slice(2, 1), None),
        ("matrix", slice(0, 2, 2), None),
        ("matrix", slice(5, None), None),
        ("matrix", None, slice(0, 6)),
        ("matrix", None, slice(-1, None)),
        ("matrix", None, slice(3, 2)),
        ("matrix", None, slice(0, 4, 2)),
        ("vector", None, slice(0, 0)),
        ("scalar", slice(0, 0), None),
    ],
)
def test_what_is_outside_the_tensor_is_refused(
    opened: Opener, name: str, rows: slice | None, columns: slice | None
) -> None:
    shapes = {"matrix": (4, 5), "vector": (5,), "scalar": ()}
    file = opened(safetensors_bytes({key: np.full(shape, 2, np.float32) for key, shape in shapes.items()}))
    assert (read_values(file, name) == 2).all()
    with pytest.raises(ValueError, match="must lie inside it"):
        read_values(file, name, rows, columns)


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize(("gap", "reads", "elements"), [(12, 1, 2 + 5), (2, 2, 4)], ids=["near", "far"])
def test_columns_are_read_with_what_lies_between_where_that_is_little(
    opened: Opener, dtype: str, gap: int, reads: int, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix, sizes = np.arange(20, dtype=np.float32).reshape(4, 5), []
    stored = converted(matrix, "F32", dtype)[0]
    file = opened(safetensors_bytes({"x": stored}))
    read = file.read_into
    monkeypatch.setattr(
        file, "read_into", lambda name, start, buffer: (sizes.append(len(buffer)), read(name, start, buffer))
    )
    monkeypatch.setattr("mindbatch.checkpoint.formats.floats.GAP_BYTES", gap)
    found = read_values(file, "x", slice(1, 3), slice(2, 4))
    np.testing.assert_array_equal(found, matrix[1:3, 2:4])
    assert sizes == [elements * stored.itemsize // reads] * reads


def test_truncation_at_every_position_is_refused(opened: Opener) -> None:
    for length in range(len(SMALL_BYTES)):
        with pytest.raises(CheckpointError, match=r"w\.safetensors: "):
            opened(SMALL_BYTES[:length])


LARGE = 32 << 20


def write_large(path: Path, dtype: str) -> None:
    """LARGE bytes of a [2, n] tensor of ones."""
    stored: dict[str, npt.NDArray[Any]] = {
        "F32": np.ones(1, np.float32),
        "F16": np.ones(1, np.float16),
        "BF16": bfloat16_bits([1]),
    }
    one = stored[dtype]
    count = LARGE // one.nbytes
    path.write_bytes(file_bytes({"x": entry(dtype, [2, count // 2], 0, LARGE)}, one.tobytes() * count))


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_memory_holds_the_values_once(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "w.safetensors"
    write_large(path, dtype)
    file = open_safetensors(path)
    tracemalloc.start()
    try:
        values = read_values(file, "x")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (values == 1).all()
    assert peak < values.nbytes + (5 << 20)


def test_a_file_that_becomes_shorter_while_it_is_read_is_named(opened: Opener) -> None:
    """A mapping of it ended the process by SIGBUS."""
    file = opened(SMALL_BYTES)
    os.truncate(file.path, file.size - 1)
    name = max(file.tensors, key=lambda name: file.info(name).extents[0].offset)
    for read in (partial(read_values, file), lambda name: list(file.chunks(name))):
        with pytest.raises(CheckpointError, match=r"w\.safetensors: became shorter while it was read"):
            read(name)
