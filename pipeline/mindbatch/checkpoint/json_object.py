"""JSON objects of checkpoints, from files and headers: bounded in size and memory, read strictly."""

from pathlib import Path
from typing import Any

from mindbatch.checkpoint.error_lines import shown
from mindbatch.io.errors import CheckpointError
from mindbatch.io.file_signatures import foreign_format
from mindbatch.io.regular_file import read_regular
from mindbatch.io.strict_json import JsonError, StrictReader, parts_error

_READER = StrictReader(shown=shown)
_KINDS = {bool: "boolean", list: "array", str: "string", int: "number", float: "number"}


def read_json_object(path: Path, max_bytes: int) -> dict[str, Any]:
    """The object in the file. CheckpointError when larger than `max_bytes`, unreadable or not strict JSON."""
    data = read_bounded(path, max_bytes, "; must be a JSON object")
    return parse_json_object(data, str(path))


def read_bounded(path: Path, max_bytes: int, needed: str = "") -> bytes:
    """The file's bytes. CheckpointError when larger, unreadable or of a foreign format, with `needed`."""
    data = read_limited(path, max_bytes)
    if reason := foreign_format(data):
        raise CheckpointError(f"{path}: {reason}{needed}")
    return data


def read_limited(path: Path, max_bytes: int) -> bytes:
    """The file's bytes, whatever it is. CheckpointError when larger or unreadable."""
    try:
        return read_regular(path, max_bytes)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error


def parse_json_object(data: bytes, where: str) -> dict[str, Any]:
    """The object in `data`; `where` names its origin in the CheckpointError raised for anything else."""
    if problem := parts_error(data):
        raise CheckpointError(f"{where}: {problem}")
    try:
        value = _READER.parse(data)
    except JsonError as error:
        raise CheckpointError(f"{where}: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{where}: holds a JSON {_KINDS.get(type(value), 'null')}; must be an object")
    return value
