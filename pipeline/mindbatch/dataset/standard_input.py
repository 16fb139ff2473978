"""Keeping standard input in a file, since rows are read more than once and a run may be resumed."""

from pathlib import Path
from typing import BinaryIO

from mindbatch.errors import ConfigError
from mindbatch.storage import Storage, WholeFile

NAME = "standard input"
"""What rows that came from standard input are called after, whichever file keeps them."""

_CHUNK_BYTES = 1 << 20


def spool_standard_input(target: Path, stream: BinaryIO, storage: Storage | None = None) -> int:
    """Copies all of the stream into `target`, which appears whole or not at all; the number of bytes.

    Raises:
        ConfigError: the stream cannot be read.
        StorageError: the file cannot be written.
    """
    with WholeFile(target, storage) as file:
        while chunk := _read(stream):
            file.write(chunk)
        return file.tell()


def _read(stream: BinaryIO) -> bytes:
    try:
        return stream.read(_CHUNK_BYTES)
    except OSError as error:
        raise ConfigError(
            f"data.path=-: standard input cannot be read ({error.strerror or error})"
        ) from error
