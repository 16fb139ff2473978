"""What kernels share: number types, memory of weights, slopes of ALiBi, and sums over processes."""

import mmap
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mindbatch.io.errors import ConfigError
from mindbatch.kernels import arrays
from mindbatch.kernels.arrays import ARENA_CHUNK, CACHE_LINE, Arena
from mindbatch.kernels.memory import DTYPES, kernel_dtype, padded_head
from mindbatch.kernels.native_library import find_library
from mindbatch.kernels.shapes import Alibi, alibi_slopes


@pytest.mark.parametrize(("device_target", "name"), [("CPU", "float32"), ("Ascend", "bfloat16")])
def test_auto_is_the_first_type_of_the_device(device_target: str, name: str) -> None:
    assert kernel_dtype("auto", device_target) == DTYPES[device_target][0]
    assert kernel_dtype("auto", device_target).name == name


@pytest.mark.parametrize(
    ("device_target", "dtype", "reason"),
    [
        ("CPU", "float16", "whose kernels compute in float32 and bfloat16"),
        (
            "Ascend",
            "float32",
            "ReshapeAndCache, PagedAttention and ApplyRotaryPosEmb take float16 and bfloat16",
        ),
    ],
)
def test_a_type_that_no_kernel_computes_in_is_refused(device_target: str, dtype: str, reason: str) -> None:
    with pytest.raises(
        ConfigError, match=f"{dtype}: not with runtime.device_target={device_target}.*{reason}"
    ):
        kernel_dtype(dtype, device_target)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_ascend_has_both_half_types(dtype: str) -> None:
    assert (kernel_dtype(dtype, "Ascend").name, kernel_dtype(dtype, "Ascend").itemsize) == (dtype, 2)


def test_heads_are_padded_to_whole_vectors() -> None:
    assert [padded_head(size) for size in (1, 16, 17, 64)] == [16, 16, 32, 64]


def test_arrays_of_an_arena_are_zeros_and_share_nothing() -> None:
    arena = Arena()
    shapes = [(3, 5), (1,), (0, 4), (7, 100), (ARENA_CHUNK // 4 + 1,), (2, 2)]
    arrays = [arena.zeros(shape, np.dtype(np.float32)) for shape in shapes]
    for number, (array, shape) in enumerate(zip(arrays, shapes, strict=True)):
        assert array.shape == shape
        assert not array.any()
        assert array.ctypes.data % CACHE_LINE == 0 or array.size == 0
        array[...] = number
    for number, array in enumerate(arrays):
        assert (array == number).all()


def test_small_arrays_are_neighbours() -> None:
    """So that many of them lie on one huge page."""
    arena = Arena()
    first, second = (arena.zeros((CACHE_LINE + 1,), np.dtype(np.int8)) for _ in range(2))
    assert second.ctypes.data - first.ctypes.data == 2 * CACHE_LINE


@pytest.mark.parametrize(
    ("heads", "slopes"),
    [
        (1, [2**-8]),
        (2, [2**-4, 2**-8]),
        (8, [2**-power for power in range(1, 9)]),
        (3, [2**-4, 2**-8, 2**-2]),
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
        (12, [2**-power for power in range(1, 9)] + [2 ** -(power + 0.5) for power in range(4)]),
    ],
)
def test_slopes(heads: int, slopes: list[float]) -> None:
    assert alibi_slopes(heads) == pytest.approx(slopes, rel=1e-6)


def test_a_rank_has_the_slopes_of_its_heads() -> None:
    whole = Alibi(alibi_slopes(6), factor=0.5, is_rounded=True)
    parts = [whole.of_heads(first, first + 2) for first in (0, 2, 4)]
    assert sum((part.slopes for part in parts), ()) == whole.slopes
    assert {(part.factor, part.is_rounded) for part in parts} == {(0.5, True)}


PROGRAM = Path(__file__).parents[2] / "processes/process_group_ranks.py"


@pytest.mark.fast_cases(1)
@pytest.mark.skipif(find_library() is None, reason="the C++ kernels were not built")
@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_sums_and_gathers_of_several_processes(size: int) -> None:
    done = subprocess.run([sys.executable, PROGRAM, str(size)], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(("size", "advised"), [("2097152\n", 1), ("536870912\n", 0), (None, 1)])
def test_huge_pages_are_asked_for_where_they_are_small(
    size: str | None, advised: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On systems with pages of 64 KiB one huge page has 512 MiB."""
    asked = []

    class Mapping(mmap.mmap):
        def madvise(self, *arguments: int) -> None:
            asked.append(arguments)

    if size is not None:
        (tmp_path / "size").write_text(size)
    monkeypatch.setattr(arrays, "HUGE_PAGE_SIZE", tmp_path / "size")
    monkeypatch.setattr(mmap, "mmap", Mapping)
    arrays.aligned_zeros((arrays.HUGE_PAGE,), np.dtype(np.uint8))
    assert len(asked) == advised
