"""MindSpore's .ckpt: what is read, that contents are not read on opening, and that damage is refused."""

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from ckpt_bytes import ckpt_bytes, field, number, tensor, text_value, value, varint, with_crc
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors_writer import bfloat16_bits

from mindbatch.checkpoint.formats import ckpt_file
from mindbatch.checkpoint.formats.ckpt_file import open_ckpt
from mindbatch.checkpoint.formats.stored import StoredFile
from mindbatch.io.errors import CheckpointError

SMALL: dict[str, npt.NDArray[Any]] = {
    "layer.0.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "layer.0.bias": bfloat16_bits([1.5, -2.0, 0.25]),
    "step": np.array(7, np.int64),
}
SMALL_BYTES = ckpt_bytes(SMALL)
FLOATS = np.arange(4, dtype=np.float32).tobytes()
Opener = Callable[[bytes], StoredFile]


@pytest.fixture
def opened(tmp_path: Path) -> Opener:
    def open_bytes(content: bytes) -> StoredFile:
        path = tmp_path / "w.ckpt"
        path.write_bytes(content)
        return open_ckpt(path)

    return open_bytes


def contents(file: StoredFile) -> dict[str, bytes]:
    return {name: b"".join(map(bytes, file.chunks(name))) for name in file.tensors}


def refusal(opened: Opener, content: bytes) -> str:
    with pytest.raises(CheckpointError) as caught:
        opened(content).close()
    assert "w.ckpt: " in str(caught.value)
    return str(caught.value)


arrays = hnp.arrays(
    st.sampled_from([np.float32, np.float16, np.float64, np.int64, np.int8, np.bool_]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=1, max_side=5),
)


@given(st.dictionaries(st.text("abc._0", min_size=1).filter(lambda n: ".." not in n), arrays), st.data())
def test_reads_every_tensor_however_it_is_cut(
    opened: Opener, tensors: dict[str, npt.NDArray[Any]], data: st.DataObject
) -> None:
    if not tensors:
        return
    with opened(ckpt_bytes(tensors, data.draw(st.integers(1, 64)))) as file:
        assert list(file.tensors) == list(tensors)
        assert [info.shape for info in file.tensors.values()] == [array.shape for array in tensors.values()]
        assert contents(file) == {name: array.tobytes() for name, array in tensors.items()}
        for name, array in tensors.items():
            start = data.draw(st.integers(0, array.nbytes))
            buffer = bytearray(data.draw(st.integers(0, array.nbytes - start)))
            file.read_into(name, start, memoryview(buffer))
            assert buffer == array.tobytes()[start : start + len(buffer)]


def test_a_scalar_with_dims_0_and_an_empty_tensor(opened: Opener) -> None:
    with opened(value("old", [0], "Float32", FLOATS[:4]) + value("empty", [0], "Float32", b"")) as file:
        assert file.tensors["old"].shape == ()
        assert file.tensors["empty"].shape == (0,)


def test_texts_are_read_and_are_no_tensors(opened: Opener) -> None:
    with opened(SMALL_BYTES + text_value("note", "hé\U0001f600") + text_value("none", "")) as file:
        assert dict(file.texts) == {"note": "hé\U0001f600", "none": ""}
        assert list(file.tensors) == list(SMALL)


def test_a_checksum_is_seen_and_not_taken_for_a_tensor(opened: Opener) -> None:
    with opened(with_crc(SMALL_BYTES)) as file:
        assert file.kind == "ckpt"
        assert file.crc is not None
        assert file.crc[0] == len(SMALL_BYTES)
        assert list(file.tensors) == list(SMALL)


def test_reading_beyond_the_tensor_is_refused(opened: Opener) -> None:
    with opened(SMALL_BYTES) as file:
        for start, count in ((0, 25), (24, 1), (-1, 2)):
            with pytest.raises(ValueError, match="tensor"):
                file.read_into("layer.0.weight", start, memoryview(bytearray(count)))
        with pytest.raises(
            CheckpointError, match=r"no tensor 'layer.0.wieght'; did you mean 'layer.0.weight'"
        ):
            file.read_into("layer.0.wieght", 0, memoryview(bytearray(1)))


def test_opening_a_large_file_reads_next_to_nothing(tmp_path: Path) -> None:
    """20 GiB with holes: 20 tensors in two parts each."""
    path = tmp_path / "large.ckpt"
    half = 512 << 20
    with path.open("wb") as file:
        for index in range(20):
            whole = value(f"layer.{index}", [1 << 28], "Float32", b"")
            for _ in range(2):
                inner = field(1, f"layer.{index}".encode())
                described = number(1, 1 << 28) + field(2, b"Float32") + varint(3 * 8 + 2) + varint(half)
                inner += varint(2 * 8 + 2) + varint(len(described) + half) + described
                file.write(varint(8 + 2) + varint(len(inner) + half) + inner)
                file.seek(half, os.SEEK_CUR)
            assert whole
        file.truncate()
    tracemalloc.start()
    try:
        with open_ckpt(path) as opened:
            _, peak = tracemalloc.get_traced_memory()
            assert sum(info.nbytes for info in opened.tensors.values()) == 20 << 30
            assert all(len(info.extents) == 2 for info in opened.tensors.values())
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "empty"),
        (value("x", [4], "Float32", FLOATS)[:-1], "truncated"),
        (value("x", [5], "Float32", FLOATS), "'x': shape [5] of Float32 needs 20 bytes, the file holds 16"),
        (value("x", [3], "Float32", FLOATS), "needs 12 bytes, the file holds 16"),
        (value("x", [-4], "Float32", FLOATS), "'x': shape [-4] must be"),
        (value("x", [1 << 62, 1 << 62], "Float32", FLOATS), "too large"),
        (value("x", [0, 1 << 62, 1 << 62], "Float32", b""), "too large"),
        (value("x", [1] * 33, "Float32", FLOATS[:4]), "'x': byte"),
        (value("x", [4], "Float33", FLOATS), "'x': type 'Float33' is unknown; known are Bool"),
        (value("x", [4], "Int4", FLOATS), "'x': type 'Int4' is unknown"),
        (value("../x", [4], "Float32", FLOATS), "'../x': a name must be printable"),
        (value("a\nb", [4], "Float32", FLOATS), r"'a\nb': a name must be printable"),
        (value("", [4], "Float32", FLOATS), "1 to 512"),
        (value("x" * 513, [4], "Float32", FLOATS), "1 to 512"),
        (value("x" * 5000, [4], "Float32", FLOATS), "at most 2048"),
        (field(1, field(1, b"\xff") + field(2, tensor([], "Int8", b"1"))), "not UTF-8"),
        (value("x", [4], "Float32", FLOATS) * 2, "'x': is there twice"),
        (
            value("x", [4], "Float32", FLOATS[:8]) + value("y", [], "Int8", b"1")
            + value("x", [4], "Float32", FLOATS[8:]),
            "'x': is there twice",
        ),
        (value("x", [4], "Float32", FLOATS[:8]) + value("x", [2, 2], "Float32", FLOATS[8:]), "twice"),
        (value("x", [4], "Float32", FLOATS[:8]) + value("x", [4], "Int32", FLOATS[8:]), "twice"),
        (value("x", [4], "Float32", FLOATS[:8]), "needs 16 bytes, the file holds 8"),
        (text_value("x", "a" * (1 << 19)), "'x': a string must have"),
        (value("x", [1], "str", b"a\0\0\0"), "'x': a string must have"),
        (value("x", [0], "str", b"a\0\0"), "'x': a string must have"),
        (value("x", [0], "str", b"\xff" * 4), "'x': not a string in UTF-32"),
        (SMALL_BYTES + b"\0", "byte"),
        (SMALL_BYTES + b"crc_num" + b"\0" * 9, "byte"),
        (field(2, b"x"), "byte 0: field 2; must be 1, an entry"),
        (number(1, 5), "byte 0: field 1; must be 1, an entry"),
        (varint(1 * 8 + 5) + b"\0\0\0\0", "byte 0: field 1 of wire type 5; must be of type 0 or 2"),
        (b"\x0a" + b"\x80" * 11, "a number of more than 10 bytes"),
        (b"\x0a\x80\x00", "a number is not written as it must be"),
        (b"\x0a" + varint(1 << 40), "truncated: 1099511627776 bytes needed, 0 are left"),
        (field(1, b""), "truncated: an entry ends before a name"),
        (field(1, field(1, b"x")), "truncated: an entry ends before a tensor"),
        (field(1, field(1, b"x") + field(3, b"")), "'x': byte 5: a map parameter"),
        (field(1, field(1, b"x") + field(2, b"")), "'x': byte 7: truncated: an entry ends"),
        (field(1, field(1, b"x") + field(2, field(2, b"Int8"))), "ends before the contents"),
        (field(1, field(1, b"x") + field(2, field(3, b"1"))), "field 3; must be 2, the dtype"),
        (
            field(1, field(1, b"x") + field(2, tensor([], "Int8", b"1") + field(4, b""))),
            "'x': byte 16: 2 bytes more than an entry has",
        ),
        (field(1, field(1, b"x") + field(2, tensor([], "Int8", b"1")) + b"\x08\x01"), "2 bytes more"),
        (bytes.fromhex("d85e3a7f") + b"x" * 60, "an encrypted MindSpore checkpoint"),
        (bytes.fromhex("d95e3a7f") + b"x" * 60, "an encrypted MindSpore checkpoint"),
        (b"PK\x03\x04" + b"x" * 60, "a PyTorch checkpoint is one"),
        (b"\x80\x04\x95" + b"x" * 60, "a Python pickle"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "git lfs pull"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_by_name(opened: Opener, content: bytes, fault: str) -> None:
    assert fault in refusal(opened, content)


def test_faults_are_not_gathered_without_end(opened: Opener) -> None:
    many = b"".join(value(f"x{index}", [4], "Wide", b"") for index in range(500))
    assert len(refusal(opened, many).splitlines()) < 15


def test_too_many_entries_are_refused(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ckpt_file, "MAX_VALUES", 2)
    assert "more than 2 entries" in refusal(opened, SMALL_BYTES)


def test_a_tensor_in_very_many_parts_takes_no_longer_for_it(opened: Opener) -> None:
    """Each part is looked at once: at 10,000 parts anything else would take very long."""
    count = 10_000
    with opened(ckpt_bytes({"x": np.zeros(count, np.int8)}, 1)) as file:
        assert file.tensors["x"].nbytes == count


def test_truncation_at_every_position_is_refused_or_ends_between_tensors(opened: Opener) -> None:
    ends = {len(ckpt_bytes(dict(list(SMALL.items())[:count]))) for count in (1, 2)}
    for length in set(range(len(SMALL_BYTES))) - ends:
        refusal(opened, SMALL_BYTES[:length])


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for path, reason in ((tmp_path, "Is a directory"), (tmp_path / "none.ckpt", "missing")):
        with pytest.raises(CheckpointError, match=reason):
            open_ckpt(path)


def test_no_descriptor_is_left_open_by_a_refusal(opened: Opener) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        refusal(opened, SMALL_BYTES[:-1])
    assert len(os.listdir("/proc/self/fd")) == before
