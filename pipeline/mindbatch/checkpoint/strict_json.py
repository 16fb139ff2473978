"""JSON objects read strictly (RFC 8259): bounded in size, UTF-8, no duplicate keys, no NaN or Infinity.

Bounded in memory, too: a value of two bytes, such as an empty list, may take a hundred once it is read.
"""

import json
import math
from pathlib import Path
from typing import Any, NoReturn

from mindbatch.checkpoint.faults import shown
from mindbatch.errors import CheckpointError
from mindbatch.foreign_formats import foreign_format
from mindbatch.regular_file import read_regular

_MAX_DIGITS = 100
MAX_PARTS = 1_000_000
"""Lists, objects and commas: those of a safetensors header for 125,000 tensors of two dimensions."""


def read_json_object(path: Path, max_bytes: int) -> dict[str, Any]:
    """The object in the file. CheckpointError when larger than `max_bytes`, unreadable or not strict JSON."""
    try:
        data = read_regular(path, max_bytes)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    if reason := foreign_format(data):
        raise CheckpointError(f"{path}: {reason}; must be a JSON object")
    return parse_json_object(data, str(path))


def parse_json_object(data: bytes, where: str) -> dict[str, Any]:
    """The object in `data`; `where` names its origin in the CheckpointError raised for anything else."""
    if fault := parts_fault(data):
        raise CheckpointError(f"{where}: {fault}")
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique_keys,
            parse_constant=_refuse_constant,
            parse_float=_finite_float,
            parse_int=_bounded_int,
        )
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{where}: not UTF-8 text (byte {error.start})") from error
    except RecursionError as error:
        raise CheckpointError(f"{where}: JSON nested too deeply") from error
    except ValueError as error:
        raise CheckpointError(f"{where}: not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{where}: holds a JSON {_kind(value)}; must be an object")
    return value


def parts_fault(data: bytes) -> str | None:
    """Why JSON could take too much memory, counted before anything of it is read."""
    parts = sum(data.count(mark) for mark in (b"[", b"{", b","))
    return (
        f"{parts} lists, objects and commas; at most {MAX_PARTS} are allowed" if parts > MAX_PARTS else None
    )


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {shown(key)} appears twice in one object")
        result[key] = value
    return result


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"the number {name} is not allowed")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {shown(text)} is too large")
    return value


def _bounded_int(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"a number has {len(text)} digits; at most {_MAX_DIGITS} are allowed")
    return int(text)


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    names = {list: "array", str: "string", int: "number", float: "number"}
    return names[type(value)]
