"""Readers with a fault each, which the fuzzer must find."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

from fuzz.cases import MEMORY, Reader
from fuzz.job_readers import run_whole
from fuzz.mutations import of_bytes
from mindbatch import cli
from mindbatch.io.errors import MindBatchError

GOOD = b"good"


def _file(folder: Path) -> list[Path]:
    (folder / "file").write_bytes(GOOD)
    return [folder / "file"]


def _computes(path: Path) -> None:
    while True:
        pass


def _allocates(path: Path) -> None:
    bytearray(2 * MEMORY)


def _raises(path: Path) -> None:
    int("x")


def _crashes(path: Path) -> None:
    os.abort()


def _shouts(path: Path) -> None:
    raise MindBatchError(f"{path}: \x1b[2J")


def _mumbles(path: Path) -> None:
    raise MindBatchError("no")


def _told_by_python(path: Path) -> None:
    with patch.object(cli, "main", lambda *words, **options: print("Traceback", file=sys.stderr)):
        run_whole(path.parent, "generate")


def _written_past_python(path: Path) -> None:
    with patch.object(cli, "main", lambda *words, **options: os.write(2, b"thread panicked\n") and 1):
        run_whole(path.parent, "generate")


def _silent(path: Path) -> None:
    with patch.object(cli, "main", lambda *words, **options: 1):
        run_whole(path.parent, "generate")


def _unless_good(fault: Callable[[Path], None]) -> Callable[[Path], None]:
    return lambda path: None if path.read_bytes() == GOOD else fault(path)


FAULTS = {
    _computes: "the process was ended by SIGXCPU",
    _allocates: "MemoryError at planted_readers.py:",
    _raises: "ValueError at planted_readers.py:",
    _crashes: "the process was ended by SIGABRT",
    _shouts: "a line with control characters",
    _mumbles: "a line that names no file",
    _told_by_python: "exit code None",
    _written_past_python: "a line that is not ours: 'thread panicked'",
    _silent: "exit code 1 without a word",
}
READERS = [Reader(f"planted{read.__name__}", _file, _unless_good(read), of_bytes) for read in FAULTS]
