"""Compressed files are unpacked as they are read; damage is a fault of a row, a disk that fails is not."""

import gzip
import io
import json
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mindbatch.dataset.data_files import BUFFER_BYTES
from mindbatch.dataset.dataset import Dataset
from mindbatch.io.errors import ConfigError, MindBatchError

ROWS = [{"id": i, "text": f"{i * 7919**5 % 10**18:018d}"} for i in range(20_000)]
LINES = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)


def zstd(content: bytes) -> bytes:
    return pa.Codec("zstd").compress(content, asbytes=True)  # type: ignore[no-any-return]


Pack = Callable[[bytes], bytes]
PACKS: dict[str, Pack] = {".gz": gzip.compress, ".zst": zstd}


@pytest.fixture(params=PACKS, scope="module")
def suffix(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def pack(suffix: str) -> Pack:
    return PACKS[suffix]


@pytest.fixture
def path(tmp_path: Path, suffix: str) -> Path:
    return tmp_path / f"a.jsonl{suffix}"


@pytest.fixture(scope="module")
def packed(suffix: str) -> bytes:
    """LINES."""
    return PACKS[suffix](LINES)


@pytest.mark.fast_cases(1)
def test_several_packed_pieces_are_one_file(path: Path, pack: Pack) -> None:
    path.write_bytes(pack(LINES[:1000]) + pack(b"") + pack(LINES[1000:]))
    assert [record.columns for record in Dataset(path).records()] == ROWS


def test_tables_and_arrays_may_be_packed_too(tmp_path: Path, suffix: str, pack: Pack) -> None:
    (tmp_path / f"a.csv{suffix}").write_bytes(pack(b"id\n1\n"))
    (tmp_path / f"b.json{suffix}").write_bytes(pack(b'[{"id": 2}]'))
    assert [record.columns for record in Dataset(tmp_path).records()] == [{"id": "1"}, {"id": 2}]


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("kept", [0.5, 0.9, 0.9999])
def test_rows_before_a_cut_are_read_and_the_cut_is_a_fault(path: Path, packed: bytes, kept: float) -> None:
    path.write_bytes(packed[: int(len(packed) * kept)])
    *good, last = Dataset(path).records()
    assert [record.columns for record in good] == ROWS[: len(good)]
    assert len(good) > 0.8 * kept * len(ROWS)
    if path.suffix == ".gz":
        assert len(good) == zlib.decompressobj(wbits=31).decompress(path.read_bytes()).count(b"\n")
    assert last.line == len(good) + 1
    assert last.error is not None
    assert "data is damaged or cut off here (" in last.error
    assert last.error.endswith("); nothing after it was read")


@pytest.mark.fast_cases(1)
def test_damage_within_and_after(path: Path, packed: bytes) -> None:
    for content in (packed[:-1000] + b"\xff" * 200 + packed[-800:], packed + b"garbage"):
        path.write_bytes(content)
        *others, last = Dataset(path).records()
        assert [record.columns for record in others[:10_000]] == ROWS[:10_000]
        assert "data is damaged or cut off here" in str(last.error)


CUT = {
    "a.csv": (b"id,text\n" + b"".join(b'%d,"x\n%d"\n' % (i, i * 7919**5) for i in range(20_000)), 2),
    "a.json": (json.dumps(ROWS).encode(), 1),
}


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("name", CUT)
def test_a_table_or_array_that_is_cut_says_where(name: str, tmp_path: Path, suffix: str, pack: Pack) -> None:
    content, lines_per_row = CUT[name]
    packed = pack(content)
    path = tmp_path / f"{name}{suffix}"
    path.write_bytes(packed[: len(packed) // 2])
    *good, last = Dataset(path).records()
    assert all(record.error is None for record in good)
    assert last.line == good[-1].line + lines_per_row > 1000
    assert "cut off" in str(last.error)
    if name == "a.json":
        assert [record.columns for record in good] == ROWS[: len(good)]


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.json"])
def test_a_file_that_is_not_packed_as_its_name_says_is_refused(
    tmp_path: Path, suffix: str, name: str
) -> None:
    path = tmp_path / f"{name}{suffix}"
    path.write_bytes(LINES)
    with pytest.raises(ConfigError) as caught:
        Dataset(path)
    (fault,) = caught.value.lines
    assert fault.startswith(f"data.path: {path}: the ")
    assert "data is damaged or cut off here (" in fault
    assert "\n" not in fault


LINE = (b'{}\n{"a": "' + b"x" * 50_000_000 + b'"}\n{}', (1, 2, 3), "line is longer than 1000000 bytes")
LARGE: dict[str, tuple[bytes, tuple[int, ...], str]] = {
    "a.jsonl": LINE,
    "a.jsonl.gz": LINE,
    "a.jsonl.zst": LINE,
    "a.json": (
        b'[{}, {"a": "' + b"x" * 50_000_000 + b'"}, {}]',
        (1, 2, 3),
        "element is longer than 1000000 bytes",
    ),
    "a.csv": (
        b'a\n1\n"' + (b"x" * 99_999 + b"\n") * 500 + b'"\n2\n',
        (2, 3, 504),
        "row is longer than 1000000 bytes (lines 3 to 503)",
    ),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_row_of_50_megabytes_is_not_held(tmp_path: Path, name: str) -> None:
    content, lines, fault = LARGE[name]
    path = tmp_path / name
    path.write_bytes(PACKS.get(path.suffix, bytes)(content))
    found, arrow = [], 0
    tracemalloc.start()
    arrow_before = pa.total_allocated_bytes()
    try:
        for record in Dataset(path, max_line_bytes=10**6).records():
            found.append((record.line, record.error))
            arrow = max(arrow, pa.total_allocated_bytes() - arrow_before)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == [(lines[0], None), (lines[1], f"the {fault}"), (lines[2], None)]
    assert peak + arrow < 8 * 10**6


class FailingFile(io.FileIO):
    """Gives what the buffers hold at most, then says what a broken disk says."""

    def readinto(self, buffer: Any, /) -> int:
        self._check()
        return super().readinto(buffer) or 0

    def read(self, size: int | None = -1, /) -> bytes:
        self._check()
        return super().read(size) or b""

    def _check(self) -> None:
        if self.tell() >= BUFFER_BYTES // 2:
            raise OSError(5, "Input/output error")


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.csv", "a.json"])
def test_a_disk_that_fails_is_no_fault_of_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    content = {".csv": b"text\n" + LINES.replace(b'"', b""), ".json": json.dumps(ROWS).encode()}
    path = tmp_path / name
    path.write_bytes(PACKS.get(path.suffix, bytes)(content.get(path.suffix, LINES)))
    dataset = Dataset(path)
    monkeypatch.setattr(io, "FileIO", FailingFile)
    with pytest.raises(MindBatchError) as caught:
        list(dataset.records())
    assert caught.value.lines == (f"{path}: cannot be read (Input/output error)",)


def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        Dataset("/proc/self/mem", "jsonl")
    assert caught.value.lines == ("data.path: /proc/self/mem: cannot be read (Input/output error)",)
    path = tmp_path / "a.jsonl"
    path.touch()
    dataset = Dataset(path)
    path.unlink()
    for read in (lambda: list(dataset.records()), dataset.digest):
        with pytest.raises(MindBatchError, match=r"a.jsonl: cannot be read \(No such file or directory\)"):
            read()
