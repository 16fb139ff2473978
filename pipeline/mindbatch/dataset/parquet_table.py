"""Rows of a Parquet file, a few at a time, as plain JSON values."""

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from mindbatch.dataset import parquet_worker
from mindbatch.dataset.data_files import DamagedData, DataFile
from mindbatch.dataset.records import Record, columns_error
from mindbatch.io.children import AnsweringProcess, ChildDied, Limits, ProcessorTimeUsedUp
from mindbatch.io.errors import MindBatchError
from mindbatch.io.screen_text import printable
from mindbatch.prompts.prompt_lines import MAX_DEPTH, too_long_error

_MEMORY_BYTES, _SECONDS = 2 << 30, 10.0
_MEMORY_PER_ROW_BYTE, _SECONDS_PER_ROW_BYTE = 16, 1e-6
"""Additional memory and time for each byte of max_row_bytes; lists of numbers need half of it."""
_MAX_DEATHS = 3


class _ReaderDied(DamagedData):
    """The data ended the process that read it."""


def parquet_rows(file: DataFile, max_row_bytes: int) -> Iterator[Record]:
    """Yields a record for each row, numbered from 1; a damaged row group is one error."""
    past = 1
    deaths = 0
    for group, num_rows in enumerate(_answer(file, max_row_bytes)["group_rows"]):
        first, past = past, past + num_rows
        number = first
        try:
            while rows := _answer(file, max_row_bytes, group=group, row=number - first):
                for row in rows:
                    yield _record(file.name, number, row, max_row_bytes)
                    number += 1
        except DamagedData as damage:
            which = f"row {number}" if number >= past - 1 else f"rows {number} to {past - 1}"
            yield Record(file.name, number, None, f"{which} cannot be read ({damage})")
            deaths += isinstance(damage, _ReaderDied)
            if deaths == _MAX_DEATHS:
                raise DamagedData(f"{deaths} of its row groups ended the process that read them") from None


def parquet_error(file: DataFile, max_row_bytes: int) -> str | None:
    """Explains why the file as a whole cannot be read; None if it can."""
    try:
        about = _answer(file, max_row_bytes)
    except DamagedData as damage:
        return f"is not a Parquet file ({damage})"
    if about["depth"] > MAX_DEPTH:
        return f"has a column nested {about['depth']:,} levels deep; at most {MAX_DEPTH} are read"
    return columns_error(about["names"]) if about["names"] else "has no columns"


def _answer(file: DataFile, max_row_bytes: int, **position: int) -> Any:
    """Returns the answer of `parquet_worker`.

    Raises:
        DamagedData: Arrow cannot read it, or has ended the process that tried.
        MindBatchError: the disk fails.
    """
    request = json.dumps({"path": str(file.path.absolute()), **position}).encode("ascii")
    process = _process(max_row_bytes)
    try:
        answer = process.ask(request, max_row_bytes + 2 * parquet_worker.ANSWER_BYTES)
    except ChildDied as death:
        raise _ReaderDied(str(death)) from death
    except ProcessorTimeUsedUp:
        raise _ReaderDied(f"stopped after {process.limits.seconds:.0f} s of processor time") from None
    if "disk" in answer:
        raise MindBatchError(f"{file.path}: cannot be read ({answer['disk']})")
    if "damage" in answer:
        raise DamagedData(printable(answer["damage"]))
    return answer


@cache
def _process(max_row_bytes: int) -> AnsweringProcess:
    """Returns the one process that reads all files, as its start takes far longer than most files."""
    limits = Limits(
        seconds=_SECONDS + _SECONDS_PER_ROW_BYTE * max_row_bytes,
        memory_bytes=_MEMORY_BYTES + _MEMORY_PER_ROW_BYTE * max_row_bytes,
    )
    return AnsweringProcess(parquet_worker.main, limits, str(max_row_bytes))


def _record(name: str, number: int, row: list[Any] | None, max_row_bytes: int) -> Record:
    if row is None:
        return Record(name, number, None, too_long_error("row", max_row_bytes))
    return Record(name, number, row[0], unusable=row[1], fills_absent=True)
