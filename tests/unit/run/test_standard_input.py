"""Standard input is kept whole or not at all."""

import io
from pathlib import Path
from typing import Any

import pytest

from mindbatch.io.errors import ConfigError
from mindbatch.io.storage import Storage, StorageError
from mindbatch.run.survey import spool_standard_input


class TornPipe(io.RawIOBase):
    """A pipe that gives some bytes and then fails."""

    def __init__(self) -> None:
        self._given = False

    def read(self, size: int | None = -1, /) -> bytes:
        if self._given:
            raise OSError(5, "Input/output error")
        self._given = True
        return b"some"


class FullDisk(Storage):
    def write(self, file: int, data: bytes) -> None:
        raise OSError(28, "No space left on device")


def test_all_of_the_stream_is_kept(tmp_path: Path) -> None:
    content = bytes(range(256)) * 20_000
    assert spool_standard_input(tmp_path / "input.spool", io.BytesIO(content)) == len(content)
    assert (tmp_path / "input.spool").read_bytes() == content
    assert spool_standard_input(tmp_path / "empty.spool", io.BytesIO()) == 0


@pytest.mark.parametrize(
    ("stream", "storage", "error", "line"),
    [
        (
            TornPipe(),
            Storage(),
            ConfigError,
            "data.path=-: standard input cannot be read (Input/output error)",
        ),
        (
            io.BytesIO(b"x"),
            FullDisk(),
            StorageError,
            "{path}: cannot be written (No space left on device)",
        ),
    ],
)
def test_what_was_there_stays_when_it_fails(
    tmp_path: Path, stream: Any, storage: Storage, error: type[Exception], line: str
) -> None:
    path = tmp_path / "input.spool"
    path.write_bytes(b"old")
    with pytest.raises(error) as caught:
        spool_standard_input(path, stream, storage)
    assert str(caught.value) == line.format(path=path)
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == b"old"
