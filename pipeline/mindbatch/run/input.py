"""Source of a run's data; standard input is kept in the run's folder, so that the run can be resumed."""

import sys
from collections.abc import Container
from pathlib import Path
from typing import BinaryIO

from mindbatch.config.machine import parse_bytes
from mindbatch.dataset.data_config import DataConfig
from mindbatch.dataset.dataset import Dataset
from mindbatch.io.errors import ConfigError
from mindbatch.io.storage import Storage, StorageError, WholeFile, reason_of
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.prompts.prompts import STANDARD_INPUT
from mindbatch.run.survey import Selection

STANDARD_INPUT_NAME = "standard input"
"""Name of rows that came from standard input, whichever file keeps them."""
EMPTY_INPUT = "data.path=-: standard input is empty; pipe the rows into the command"
_CHUNK_BYTES = 1 << 20


class DataInput:
    """The data of one command.

    kept: read what an earlier session kept of standard input instead of reading it again.
    """

    def __init__(
        self, data: DataConfig, storage: Storage, *, kept: bool = False, stdin: BinaryIO | None = None
    ) -> None:
        self._data = data
        self._storage = storage
        self._kept = kept
        self._stdin = stdin
        self._spooled: Path | None = None

    def dataset(self, folder: RunFolder, outputs: Path | None = None) -> Dataset:
        """The data, to be read as often as needed.

        outputs: the folder whose files are no data, where that is not `folder`.

        Raises:
            ConfigError: there is nothing at data.path, or standard input is empty.
            StorageError: standard input cannot be kept in the folder.
        """
        data, name = self._data, None
        path = data.path or ""
        if path == STANDARD_INPUT:
            name = STANDARD_INPUT_NAME
            path = str(folder.standard_input if self._kept else self._spool(folder))
        return Dataset(
            path,
            data.format,
            parse_bytes(data.max_line_bytes),
            name=name,
            outputs=folder.path if outputs is None else outputs,
        )

    def accept(self, folder: RunFolder) -> None:
        """Keeps what was read from standard input for the next session: the run is the one asked for.

        Raises:
            StorageError: it cannot be kept.
        """
        if self._spooled is None or self._spooled == folder.standard_input:
            return
        try:
            self._storage.replace(self._spooled, folder.standard_input)
            self._storage.sync_folder(folder.path)
        except OSError as error:
            raise StorageError.writing(folder.standard_input, error) from error
        self._spooled = folder.standard_input

    def needs(self, folder: RunFolder) -> list[Path]:
        """Files of the folder that this run reads."""
        return [folder.standard_input] if self._data.path == STANDARD_INPUT else []

    def _spool(self, folder: RunFolder) -> Path:
        """Standard input in a file of the folder; with nothing on it, what an earlier session kept."""
        if self._spooled is None:
            spooled = folder.path / f".new.{folder.standard_input.name}"
            size = spool_standard_input(spooled, self._stdin or sys.stdin.buffer, self._storage)
            if size == 0:
                spooled.unlink()
                if not folder.standard_input.is_file():
                    raise ConfigError(EMPTY_INPUT)
                spooled = folder.standard_input
            self._spooled = spooled
        return self._spooled


def selection_of(data: DataConfig) -> Selection:
    """The choice of rows that the options ask for.

    Raises:
        ConfigError: the file of keys cannot be read.
    """
    return Selection(_keys(data.filter_keys), data.shuffle_seed, data.skip, data.limit, data.max_errors)


def _keys(filter_keys: object) -> Container[str] | None:
    if filter_keys is None:
        return None
    if isinstance(filter_keys, str):
        try:
            lines = Path(filter_keys).read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise ConfigError(
                f"data.filter_keys={filter_keys}: cannot be read ({reason_of(error)})"
            ) from error
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"data.filter_keys={filter_keys}: not UTF-8 text (byte {error.start})"
            ) from error
        return frozenset(line for line in lines if line)
    assert isinstance(filter_keys, list)
    return frozenset(map(str, filter_keys))


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
