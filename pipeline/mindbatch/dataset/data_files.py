"""Files that a data path matches: the format of each by its name, and its bytes, unpacked while read."""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from mindbatch.config.paths import near_sibling, resolve_path
from mindbatch.io.error_lines import shown
from mindbatch.io.errors import ConfigError, MindBatchError
from mindbatch.io.file_patterns import is_pattern, matching_files
from mindbatch.io.regular_file import open_regular

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

Format = Literal["jsonl", "json", "csv", "tsv", "text", "parquet"]
Compression = Literal["gzip", "zstd"]

SUFFIXES: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "text",
    ".parquet": "parquet",
}
COMPRESSIONS: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd"}
ROW_SUFFIXES = [suffix + packed for suffix in SUFFIXES for packed in ("", *COMPRESSIONS)]
KNOWN = f"{', '.join(SUFFIXES)}, and all but .parquet also with {' or '.join(COMPRESSIONS)}"
GIVEN_FORMATS: dict[str, Format] = {name: name for name in SUFFIXES.values()} | {"openai": "jsonl"}
AUTO = "auto"
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file to read: its path, its name in errors, its format and compression."""

    path: Path
    name: str
    format: Format
    compression: Compression | None = None


def find_files(
    path: str | Path | Sequence[str], given_format: str = AUTO, outputs: Path | None = None
) -> list[DataFile]:
    """Returns the files of paths, in the order of the paths and of their names.

    A path is a file, a folder or a glob pattern. A folder stands for the files in it with a known suffix, or
    of `given_format`, without hidden files and subfolders. Names are relative to the common folder of all
    files.

    outputs: the folder that the run writes to. A pattern excludes files in it and in the folder of any other
        run, as a resumed run must find the same data.

    Raises:
        ConfigError: there is no such file, one whose name says no format that is known, one of `outputs`, or
            one that several paths mean.
    """
    if given_format not in (AUTO, *GIVEN_FORMATS):
        raise ConfigError(
            f"data.format={shown(given_format)}: must be one of {AUTO}, {', '.join(GIVEN_FORMATS)}"
        )
    only, files, errors = GIVEN_FORMATS.get(given_format), list[Path](), list[str]()
    for written in (path,) if isinstance(path, str | Path) else path:
        try:
            files += _files_of(str(written), only, outputs)
        except ConfigError as error:
            errors += error.lines
    twice = [file for file, number in Counter(map(_identity, files)).items() if number > 1]
    if errors := errors or [f"data.path: {file}: several of its paths mean this file" for file in twice]:
        raise ConfigError(errors)
    return _described(files, only)


def _identity(file: Path) -> Path:
    """The file behind links, except in the cache of a hub, where files of the same content share one."""
    target = file.resolve()
    return file.absolute() if target.parent.name == "blobs" and "snapshots" in file.parts else target


def _files_of(path: str, only: Format | None, outputs: Path | None) -> list[Path]:
    """Returns the files of one path. Raises ConfigError."""
    if not path:
        raise ConfigError("data.path: must be given: a file, a folder, a pattern, or - for standard input")
    try:
        return _paths(resolve_path(path), only, outputs)
    except (OSError, ValueError) as error:  # a name that is too long; no such home, a null byte
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{_shown(path)}: cannot be used ({reason})") from error


def _paths(path: Path, only: Format | None, outputs: Path | None) -> list[Path]:
    if outputs is not None and path.resolve().is_relative_to(outputs.resolve()):
        raise ConfigError(f"{_shown(path)}: is in output.dir, where the run writes; give another")
    if _holds_a_run(path):
        raise ConfigError(f"{_shown(path)}: is the folder of a run; name the file in it that is meant")
    if path.is_dir():
        return _in_folder(path, only)
    if path.is_file():
        return [path]
    if path.exists():
        raise ConfigError(
            f"{_shown(path)}: is no file that can be read twice; give data.path=- and pipe it in"
        )
    if is_pattern(path):
        files = matching_files(path)
        kept = _of_no_run(files, path, outputs)
        if not kept:
            left_out = f"; {len(files)} of runs, which are left out" if files else ""
            raise ConfigError(f"{_shown(path)}: no file matches{left_out}")
        return kept
    raise ConfigError(f"{_shown(path)}: no such file or folder{near_sibling(path)}")


def _of_no_run(files: list[Path], pattern: Path, outputs: Path | None) -> list[Path]:
    """Returns the files outside `outputs` and the folders of runs, up to the fixed part of the pattern."""
    fixed = next(folder for folder in pattern.parents if not is_pattern(folder))
    own = None if outputs is None else outputs.resolve()

    @cache
    def is_of_a_run(folder: Path) -> bool:
        varying = (above for above in (folder, *folder.parents) if above.is_relative_to(fixed))
        return any(above.resolve() == own or _holds_a_run(above) for above in varying)

    return [path for path in files if not is_of_a_run(path.parent)]


def _holds_a_run(folder: Path) -> bool:
    """True if a run was begun there (see `ledger.run_folder`)."""
    has_begun = any((folder / name).is_file() for name in ("ledger.jsonl", "lock"))
    return has_begun and (folder / "run.json").is_file()


def _in_folder(folder: Path, only: Format | None) -> list[Path]:
    wanted = {suffix for suffix, file_format in SUFFIXES.items() if only in (None, file_format)}
    files = sorted(
        path
        for path in folder.iterdir()
        if not path.name.startswith(".") and _suffixes(path)[0] in wanted and path.is_file()
    )
    if not files:
        names = ", ".join(sorted(wanted))
        raise ConfigError(f"{_shown(folder)}: the folder holds no file with a name in {names}")
    return files


def _described(paths: list[Path], forced: Format | None) -> list[DataFile]:
    base = Path(os.path.commonpath([path.parent for path in paths]))
    files, errors = [], []
    for path in paths:
        suffix, packed = _suffixes(path)
        file_format = forced or SUFFIXES.get(suffix)
        if file_format is None:
            errors.append(
                f"data.path: {path}: the name does not say what the file holds; known are {KNOWN}; or give "
                "data.format"
            )
        elif file_format == "parquet" and packed:
            errors.append(f"data.path: {path}: Parquet is compressed within; unpack the file first")
        else:
            files.append(DataFile(path, _name(path, base), file_format, COMPRESSIONS.get(packed)))
    if errors:
        raise ConfigError(errors)
    return files


def _name(path: Path, base: Path) -> str:
    """Returns the path below `base`, as text that can be stored: bytes that are not UTF-8 are written out."""
    return os.fsencode(path.relative_to(base).as_posix()).decode("utf-8", "backslashreplace")


def _shown(path: str | Path) -> str:
    return f"data.path={shown(str(path), _SHOWN)}"


def _suffixes(path: Path) -> tuple[str, str]:
    """Returns the suffix that names the format, and that of the compression or nothing, in lower case."""
    name = path.name.lower()
    packed = next((suffix for suffix in COMPRESSIONS if name.endswith(suffix)), "")
    return Path(name.removesuffix(packed)).suffix, packed


BUFFER_BYTES = 1 << 17


class DamagedData(Exception):
    """Compressed data is broken or ends early; the message is the reason.

    Damage may be noticed late: for certain only at the end of the data, by its checksum if it has one.
    """


@contextmanager
def opened(file: DataFile) -> Iterator[io.BufferedReader]:
    """The content of the file. Reading it raises DamagedData, or MindBatchError where the disk fails.

    Only the bytes that are read are unpacked, however large the content is.
    """
    with disk_errors(file.path), io.FileIO(open_regular(file.path), "rb") as disk:
        raw: io.RawIOBase = disk
        if file.compression == "gzip":
            raw = _Unpacked(gzip.GzipFile(fileobj=disk, mode="rb").read1, "gzip")
        elif file.compression == "zstd":
            raw = _Unpacked(_zstd_reader(disk), "zstd")
        with io.BufferedReader(cast(io.FileIO, raw), BUFFER_BYTES) as stream:
            yield cast(io.BufferedReader, stream)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
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
