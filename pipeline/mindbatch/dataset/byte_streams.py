"""The bytes of a data file, unpacked while they are read, with damage distinguished from a failing disk."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

from mindbatch.dataset.data_files import DataFile
from mindbatch.io.errors import MindBatchError
from mindbatch.io.regular_file import open_regular

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

BUFFER_BYTES = 1 << 17


class DamagedData(Exception):
    """Compressed data is broken or ends early; the message is the reason.

    Damage may be noticed late: for certain only at the end of the data, by its checksum if it has one.
    """


@contextmanager
def opened(file: DataFile) -> Iterator[io.BufferedReader]:
    """The content of the file. Reading it raises DamagedData, or MindBatchError where the disk fails.

    No more is unpacked than is asked for, however much the file would become.
    """
    with plain(file.path) as disk:
        if file.compression == "gzip":
            unzipped = gzip.GzipFile(fileobj=disk, mode="rb")
            raw: io.RawIOBase = _Unpacked(unzipped.read1, "gzip", (EOFError, OSError, zlib.error))
        elif file.compression == "zstd":
            raw = _Unpacked(_zstd_reader(disk), "zstd", (OSError,))
        else:
            raw = disk
        with io.BufferedReader(cast(io.FileIO, raw), BUFFER_BYTES) as stream:
            yield cast(io.BufferedReader, stream)


@contextmanager
def plain(path: Path) -> Iterator[_Disk]:
    """The file as it is on the disk."""
    try:
        file = io.FileIO(open_regular(path), "rb")
    except OSError as error:
        raise _unreadable(path, error) from error
    with file:
        yield _Disk(file, path)


def _unreadable(path: Path, error: OSError) -> MindBatchError:
    return MindBatchError(f"{path}: cannot be read ({error.strerror or error})")


def _zstd_reader(disk: _Disk) -> Callable[[int], bytes]:
    """Opens Arrow's reader: of the two libraries at hand, it notices when the data ends within a frame."""
    import pyarrow

    stream = pyarrow.CompressedInputStream(disk, "zstd")
    return cast(Callable[[int], bytes], stream.read)


class _Disk(io.RawIOBase):
    """A file whose faults are the project's own, so that no unpacking can take them for damage."""

    def __init__(self, file: io.FileIO, path: Path) -> None:
        self._file = file
        self._path = path

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return self._file.seek(offset, whence)

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        try:
            return self._file.readinto(buffer) or 0
        except OSError as error:
            raise _unreadable(self._path, error) from error


class _Unpacked(io.RawIOBase):
    """Stream over `read`, which takes a number of bytes; its errors are those of the data."""

    def __init__(self, read: Callable[[int], bytes], kind: str, damages: tuple[type[Exception], ...]) -> None:
        self._read = read
        self._kind = kind
        self._damages = damages

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        into = memoryview(buffer).cast("B")
        try:
            data = self._read(len(into))
        except self._damages as error:
            raise DamagedData(f"the {self._kind} data is damaged or cut off here ({error})") from error
        into[: len(data)] = data
        return len(data)
