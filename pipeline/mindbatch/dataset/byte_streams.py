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
    with disk_faults(file.path), io.FileIO(open_regular(file.path), "rb") as disk:
        raw: io.RawIOBase = disk
        if file.compression == "gzip":
            raw = _Unpacked(gzip.GzipFile(fileobj=disk, mode="rb").read1, "gzip")
        elif file.compression == "zstd":
            raw = _Unpacked(_zstd_reader(disk), "zstd")
        with io.BufferedReader(cast(io.FileIO, raw), BUFFER_BYTES) as stream:
            yield cast(io.BufferedReader, stream)


@contextmanager
def disk_faults(path: Path) -> Iterator[None]:
    """Turns what the system says of a file into MindBatchError."""
    try:
        yield
    except OSError as error:
        raise MindBatchError(f"{path}: cannot be read ({error.strerror or error})") from error


def _zstd_reader(disk: io.FileIO) -> Callable[[int], bytes]:
    """Opens Arrow's reader: of the two libraries at hand, it notices when the data ends within a frame."""
    import pyarrow

    stream = pyarrow.CompressedInputStream(disk, "zstd")
    return cast(Callable[[int], bytes], stream.read)


class _Unpacked(io.RawIOBase):
    """Stream over `read`, which takes a number of bytes; its errors are those of the data or the disk."""

    def __init__(self, read: Callable[[int], bytes], kind: str) -> None:
        self._read = read
        self._kind = kind

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        into = memoryview(buffer).cast("B")
        try:
            data = self._read(len(into))
        except (EOFError, OSError, zlib.error) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the system's: no library that unpacks has such a number
            raise DamagedData(f"the {self._kind} data is damaged or cut off here ({error})") from error
        into[: len(data)] = data
        return len(data)
