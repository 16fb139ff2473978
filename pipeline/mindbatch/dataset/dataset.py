"""A dataset as one stream of rows, whatever files it is made of."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path

from mindbatch.dataset.data_files import (
    AUTO,
    GIVEN_FORMATS,
    DamagedData,
    DataFile,
    Format,
    disk_errors,
    find_files,
    opened,
)
from mindbatch.dataset.parquet_table import parquet_error, parquet_rows
from mindbatch.dataset.records import (
    MAX_COLUMNS,
    Record,
    columns_error,
    is_request,
)
from mindbatch.dataset.text_formats import (
    array_error,
    array_rows,
    json_line_rows,
    table_error,
    table_rows,
    text_rows,
)
from mindbatch.io.errors import ConfigError, MindBatchError
from mindbatch.io.regular_file import first_bytes, size_and_digest
from mindbatch.prompts.prompt_lines import DEFAULT_MAX_LINE_BYTES

OPENAI = "openai"
MAX_LOOKED_AT = 10_000
"""Rows among which one that can be read is looked for, to see what the others are."""

_READERS: dict[Format, Callable[[DataFile, int], Iterator[Record]]] = {
    "jsonl": json_line_rows,
    "json": array_rows,
    "csv": table_rows,
    "tsv": table_rows,
    "text": text_rows,
    "parquet": parquet_rows,
}


class Dataset:
    """The rows of a file, of those in a folder, of those that match a pattern, in the order of names; or of
    several paths.

    format: "auto" goes by the names; "openai" means JSON lines that are OpenAI batch requests.
    max_line_bytes: largest line (row, element) that is held in memory; a larger one is an error of that row.
    name: what a single file is called after if not its own name. Nothing is concluded from its name then:
        "auto" means JSON lines. For standard input, which was spooled to a file.
    outputs: the folder that the run writes to, which is no data (see `find_files`).

    Raises:
        ConfigError: no such file, an unknown suffix, a file that is not what its name says; a line for each.
    """

    def __init__(
        self,
        path: str | Path | Sequence[str],
        format: str = AUTO,
        max_line_bytes: int = DEFAULT_MAX_LINE_BYTES,
        *,
        name: str | None = None,
        outputs: Path | None = None,
    ) -> None:
        self._format = format
        self._max_line_bytes = max_line_bytes
        if name is None:
            self.data_files = find_files(path, format, outputs)
        else:
            assert isinstance(path, str | Path)
            self.data_files = [DataFile(Path(path), name, GIVEN_FORMATS.get(format, "jsonl"))]
        self._refuse_foreign_files()

    @property
    def files(self) -> list[Path]:
        return [file.path for file in self.data_files]

    def records(self) -> Iterator[Record]:
        """Yields every row, good or bad, file after file; each call reads the files again, one row at a time.
        Raises MindBatchError: the disk fails. (Damage in a file is a row's error, after which the file
        ends.)"""
        for file in self.data_files:
            yield from self._file_records(file)

    @cached_property
    def is_openai(self) -> bool:
        """True if the rows are OpenAI batch requests: by the format, or by each file's first readable row.
        Raises ConfigError: those of some files are and those of others are not."""
        if self._format != AUTO:
            return self._format == OPENAI
        kinds = {file: self._holds_requests(file) for file in self.data_files}
        requests, others = (
            next((file for file in kinds if kinds[file] is kind), None) for kind in (True, False)
        )
        if requests and others:
            raise ConfigError(
                f"data.path: {requests.path} holds OpenAI batch requests, {others.path} does not; give one "
                "kind at a time, or say with data.format which all of them are (openai, jsonl)"
            )
        return requests is not None

    def digest(self) -> dict[str, dict[str, int | str]]:
        """By the name of each file: the number of its bytes on disk and their XXH3-128, in hexadecimal."""
        return {file.name: _digest(file.path) for file in self.data_files}

    def _holds_requests(self, file: DataFile) -> bool | None:
        """None where no row near the beginning can be read."""
        if file.format != "jsonl":
            return False
        rows = islice(self._file_records(file), MAX_LOOKED_AT)
        columns = next((row.columns for row in rows if row.columns is not None), None)
        return None if columns is None else is_request(columns)

    def _file_records(self, file: DataFile) -> Iterator[Record]:
        line = 0
        try:
            for record in _READERS[file.format](file, self._max_line_bytes):
                line = record.line
                if record.columns and len(record.columns) > MAX_COLUMNS:
                    error = columns_error([*record.columns])
                    record = Record(record.file, line, None, error)
                yield record
        except DamagedData as damage:
            yield Record(file.name, line + 1, None, f"{damage}; nothing after it was read")

    def _refuse_foreign_files(self) -> None:
        errors = []
        for file in self.data_files:
            try:
                problem = file_error(file, self._max_line_bytes)
            except MindBatchError as error:
                errors += [f"data.path: {line}" for line in error.lines]
            else:
                errors += [f"data.path: {file.path}: {problem}"] if problem else []
        if errors:
            raise ConfigError(errors)


def _digest(path: Path) -> dict[str, int | str]:
    with disk_errors(path):
        size, digest = size_and_digest(path)
    return {"bytes": size, "xxh3_128": digest}


_HEAD_BYTES = 64
_OWN = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd", "parquet": b"PAR1\x15"}
_SIGNATURES = {
    b"version https://git-lfs.github.com/spec/v1": "a Git LFS pointer; fetch the data with `git lfs pull`",
    b"PK\x03\x04": "a zip archive; unpack it first",
    _OWN["gzip"]: "gzip data; its name must end in .gz",
    _OWN["zstd"]: "zstd data; its name must end in .zst",
    _OWN["parquet"]: "a Parquet file; name it .parquet or give data.format=parquet",
    b"\xff\xfe": "UTF-16 text; must be UTF-8",
    b"\xfe\xff": "UTF-16 text; must be UTF-8",
}


def file_error(file: DataFile, max_row_bytes: int) -> str | None:
    """Explains why the file cannot be what its name or the given format says; None if it can. Raises
    MindBatchError: the file cannot be opened or read."""
    if foreign := _foreign(file):
        return f"is {foreign}"
    try:
        if file.format == "parquet":
            return parquet_error(file, max_row_bytes)
        if file.format == "json":
            return array_error(file)
        if file.format in ("csv", "tsv"):
            return table_error(file, max_row_bytes)
        with opened(file) as stream:
            stream.peek(1)
    except DamagedData as damage:
        return str(damage)
    return None


def _foreign(file: DataFile) -> str | None:
    """Returns the description of another format that the first bytes show; None if they show none."""
    with disk_errors(file.path):
        head = first_bytes(file.path, _HEAD_BYTES)
    own = _OWN.get(file.compression or file.format)
    return next(
        (
            description
            for magic, description in _SIGNATURES.items()
            if magic != own and head.startswith(magic)
        ),
        None,
    )
