"""Whole files: values against the safetensors library, truncation, bit flips, and memory."""

import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import save_file
from safetensors_writer import bfloat16_bits, entry, file_bytes, safetensors_bytes

from mindbatch.checkpoint.formats.safetensors_file import SafetensorsFile
from mindbatch.errors import CheckpointError

SMALL: dict[str, npt.NDArray[Any]] = {
    "layer.0.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "layer.0.bias": bfloat16_bits([1.5, -2.0, 0.25]),
    "layer.1.weight": np.array([[0.5, -0.25]], np.float16),
}
SMALL_BYTES = safetensors_bytes(SMALL)
MANY = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
Opener = Callable[[bytes], SafetensorsFile]


@pytest.fixture
def opened(tmp_path: Path) -> Opener:
    def open_bytes(content: bytes) -> SafetensorsFile:
        path = tmp_path / "w.safetensors"
        path.unlink(missing_ok=True)  # an earlier mapping keeps its own file
        path.write_bytes(content)
        return SafetensorsFile(path)

    return open_bytes


def read_or_refused(open_it: Opener, content: bytes) -> None:
    """Nothing but a CheckpointError that names the file may come of any content."""
    try:
        read_all(open_it(content))
    except CheckpointError as error:
        message = str(error)
    else:
        return
    assert "w.safetensors: " in message


def read_all(file: SafetensorsFile) -> None:
    """Touches every byte that the file says it holds."""
    for name, info in file.tensors.items():
        assert file.raw(name).tobytes() == b"".join(file.chunks(name))
        assert file.raw(name).nbytes == info.nbytes


names = st.text(st.characters(categories=["Ll", "Nd"], include_characters="._"), min_size=1).filter(
    lambda name: ".." not in name and name.isprintable() and name != "__metadata__"
)
arrays = hnp.arrays(
    st.sampled_from([np.float32, np.float16, np.float64, np.int64, np.int8, np.bool_]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
)


@MANY
@given(st.dictionaries(names, arrays, max_size=5))
def test_reads_what_the_library_writes(tmp_path: Path, tensors: dict[str, npt.NDArray[Any]]) -> None:
    path = tmp_path / "w.safetensors"
    path.unlink(missing_ok=True)
    save_file(tensors, path)
    file = SafetensorsFile(path)
    assert set(file.tensors) == set(tensors)
    for name, array in tensors.items():
        raw = file.raw(name)
        assert (raw.dtype, raw.shape) == (array.dtype, array.shape)
        assert raw.tobytes() == array.tobytes()
        if array.dtype in (np.float32, np.float16):
            with np.errstate(invalid="ignore"):
                np.testing.assert_array_equal(file.float32(name), array.astype(np.float32))


@MANY
@given(hnp.arrays(np.uint16, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6)))
def test_every_bfloat16_bit_pattern_is_widened_exactly(opened: Opener, bits: npt.NDArray[np.uint16]) -> None:
    file = opened(safetensors_bytes({"x": bits}))
    expected = bits.astype(np.uint32) << 16
    assert np.array_equal(file.float32("x").view(np.uint32), expected)
    assert file.raw("x").dtype == np.uint16


@MANY
@given(
    hnp.array_shapes(min_dims=1, max_dims=3, max_side=7), st.sampled_from(["F32", "F16", "BF16"]), st.data()
)
def test_rows_and_slices_give_the_same_values(
    opened: Opener, shape: tuple[int, ...], dtype: str, data: st.DataObject
) -> None:
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) % 251  # exact in all three
    stored = {"F32": values, "F16": values.astype(np.float16), "BF16": bfloat16_bits(values)}[dtype]
    start = data.draw(st.integers(0, shape[0]))
    rows = slice(start, data.draw(st.integers(start, shape[0])))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "mindbatch.checkpoint.formats.safetensors_file.SLICE_BYTES", data.draw(st.integers(4, 64))
        )
        file = opened(safetensors_bytes({"x": stored}))
        out = np.full(values[rows].T.shape, np.nan, np.float32).T
        assert file.float32("x", out, rows) is out
        assert b"".join(file.chunks("x")) == stored.tobytes()
    np.testing.assert_array_equal(out, values[rows])
    np.testing.assert_array_equal(file.float32("x", rows=rows), values[rows])


def test_bfloat16_special_values(opened: Opener) -> None:
    bits = np.array([0x7F80, 0xFF80, 0x7FC1, 0x0001, 0x8000], np.uint16)
    values = opened(safetensors_bytes({"x": bits})).float32("x")
    assert values[0] == np.inf
    assert values[1] == -np.inf
    assert np.isnan(values[2])
    assert 0 < values[3] < 1e-38
    assert np.signbit(values[4])


def test_float32_is_a_read_only_view_unless_out_is_given(opened: Opener) -> None:
    file = opened(SMALL_BYTES)
    view = file.float32("layer.0.weight")
    if file.info("layer.0.weight").start % 4 == 0:
        assert np.shares_memory(view, file.raw("layer.0.weight"))
    out = np.zeros((2, 3), np.float32)
    file.float32("layer.0.weight", out)
    out += 1
    np.testing.assert_array_equal(file.raw("layer.0.weight"), SMALL["layer.0.weight"])
    with pytest.raises(ValueError, match="read-only"):
        file.raw("layer.0.weight")[0, 0] = 1


def test_aligned_float32_shares_memory_and_unaligned_is_copied(opened: Opener) -> None:
    for padding in range(4):
        header = {"x": entry("F32", [2], 0, 8)}
        text = file_bytes(header)[8:]
        text += b" " * ((-len(text)) % 4 + padding)
        file = opened(file_bytes(text, np.array([1, 2], "<f4").tobytes()))
        values = file.float32("x")
        assert np.shares_memory(values, file.raw("x")) == (padding == 0)
        assert values.flags.aligned
        assert values.tolist() == [1, 2]


def test_a_view_outlives_the_file_object(opened: Opener) -> None:
    view = opened(SMALL_BYTES).raw("layer.0.weight")
    assert view.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.int8, np.bool_])
def test_float32_of_another_dtype_is_refused(opened: Opener, dtype: type) -> None:
    file = opened(safetensors_bytes({"x": np.zeros(3, dtype)}))
    with pytest.raises(CheckpointError, match=r"w.safetensors: tensor 'x': dtype .*; needed F32, F16, BF16"):
        file.float32("x")
    assert file.raw("x").dtype == dtype


def test_out_that_does_not_fit_is_refused(opened: Opener) -> None:
    file = opened(SMALL_BYTES)
    with pytest.raises(CheckpointError, match=r"'layer.0.weight': shape \[2, 3\]; needed \[3, 2\]"):
        file.float32("layer.0.weight", np.empty((3, 2), np.float32))
    with pytest.raises(ValueError, match="out has dtype float64"):
        file.float32("layer.0.weight", np.empty((2, 3), np.float64))


@pytest.mark.parametrize("rows", [slice(0, 3), slice(-1, None), slice(2, 1), slice(0, 2, 2), slice(3, None)])
def test_rows_outside_the_tensor_are_refused(opened: Opener, rows: slice) -> None:
    with pytest.raises(ValueError, match="must lie inside it"):
        opened(SMALL_BYTES).float32("layer.0.weight", rows=rows)


def test_rows_of_a_scalar_are_refused(opened: Opener) -> None:
    file = opened(safetensors_bytes({"x": np.array(2, np.float32)}))
    assert file.float32("x") == 2
    with pytest.raises(ValueError, match="must lie inside it"):
        file.float32("x", rows=slice(0, 0))


def test_unknown_tensor_suggests_the_near_name(opened: Opener) -> None:
    with pytest.raises(CheckpointError, match=r"no tensor 'layer.0.wieght'; did you mean 'layer.0.weight'\?"):
        opened(SMALL_BYTES).raw("layer.0.wieght")


def test_truncation_at_every_position_is_refused(opened: Opener) -> None:
    for length in range(len(SMALL_BYTES)):
        with pytest.raises(CheckpointError, match=r"w\.safetensors: "):
            opened(SMALL_BYTES[:length])


def test_appended_bytes_are_refused(opened: Opener) -> None:
    with pytest.raises(CheckpointError, match="1 bytes after the last tensor"):
        opened(SMALL_BYTES + b"\0")


def test_every_bit_flip_of_the_header_is_refused_or_stays_inside(opened: Opener) -> None:
    header_end = 8 + int.from_bytes(SMALL_BYTES[:8], "little")
    refused = 0
    for position in range(header_end * 8):
        damaged = bytearray(SMALL_BYTES)
        damaged[position // 8] ^= 1 << position % 8
        try:
            read_all(opened(bytes(damaged)))
        except CheckpointError:
            refused += 1
    # The rest are other letters in a name.
    assert refused > header_end * 8 * 0.75


@MANY
@given(st.data())
def test_random_damage_of_the_header_never_crashes(opened: Opener, data: st.DataObject) -> None:
    damaged = bytearray(SMALL_BYTES)
    header_end = 8 + int.from_bytes(SMALL_BYTES[:8], "little")
    for position in data.draw(st.lists(st.integers(0, header_end * 8 - 1), min_size=1, max_size=8)):
        damaged[position // 8] ^= 1 << position % 8
    length = data.draw(st.integers(0, len(damaged)) | st.just(len(damaged)))
    read_or_refused(opened, bytes(damaged[:length]))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 40) | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["dtype", "shape", "data_offsets", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "U8", "F4", ""]) | json_values,
        "shape": st.lists(st.integers(-1, 4) | st.integers(), max_size=3) | json_values,
        "data_offsets": st.lists(st.integers(-1, 40) | st.integers(), max_size=3) | json_values,
    }
)


@MANY
@given(st.dictionaries(st.text(max_size=3), entries | json_values, max_size=3), st.integers(0, 40))
def test_any_header_is_read_or_refused(opened: Opener, header: dict[str, Any], data_bytes: int) -> None:
    read_or_refused(opened, file_bytes(header, bytes(data_bytes)))


def test_not_a_regular_file_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.safetensors"
    os.mkfifo(pipe)
    for path, reason in (
        (pipe, "not a regular file"),
        (tmp_path, "not a regular file"),
        (tmp_path / "x", "missing"),
    ):
        with pytest.raises(CheckpointError, match=reason):
            SafetensorsFile(path)


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
def test_conversion_into_out_allocates_almost_nothing(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "w.safetensors"
    write_large(path, dtype)
    file = SafetensorsFile(path)
    out = np.empty(file.info("x").shape, np.float32)
    tracemalloc.start()
    try:
        file.float32("x", out)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (out == 1).all()
    assert peak < 1 << 20


RESIDENT = """
import sys
import numpy as np
from mindbatch.checkpoint.formats.safetensors_file import SafetensorsFile

def peak():
    line = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024

file = SafetensorsFile(sys.argv[1])
out = np.zeros(file.info("x").shape, np.float32)
out += 1
file.float32("x", out[:1], slice(0, 1))
before = peak()
file.float32("x", out)
sum(len(chunk) for chunk in file.chunks("x"))
print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_mapped_pages_do_not_stay_resident(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "w.safetensors"
    write_large(path, dtype)
    command = [sys.executable, "-c", RESIDENT, str(path)]
    grown = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert grown < LARGE // 4
