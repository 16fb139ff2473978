"""Lengths and repetitions that a message of Protocol Buffers claims cost no memory; fuzz/ has the rest."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from ckpt_bytes import field, number, value, varint

from mindbatch.checkpoint.formats.ckpt_file import open_ckpt
from mindbatch.checkpoint.strategy.strategy_file import read_strategy
from mindbatch.io.errors import CheckpointError

CLAIMS = [2**20, 2**31 - 1, 2**31, 2**40, 2**63 - 1, 2**63, 2**64 - 1]
"""Lengths, counts and sizes that no file of a few bytes has."""


class Reader(NamedTuple):
    """A format by the function that reads a file of it."""

    name: str
    read: Callable[[Path], object]


def _read_ckpt(path: Path) -> object:
    with open_ckpt(path) as file:
        for name, info in file.tensors.items():
            file.read_into(name, 0, memoryview(bytearray(info.nbytes)))
        return file.tensors


CKPT, STRATEGY = Reader("ckpt", _read_ckpt), Reader("strategy", read_strategy)


@contextmanager
def _bounded(num_bytes: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < num_bytes
    finally:
        tracemalloc.stop()


def _read_or_refused(reader: Reader, path: Path, content: bytes) -> str:
    """The refusal, which names the file in each of its lines and is of printable characters."""
    path.write_bytes(content)
    faults: tuple[str, ...] = ()
    try:
        reader.read(path)
    except CheckpointError as error:
        faults = error.lines or ("a refusal without a word",)
    for line in faults:
        assert str(path) in line
        assert line.isprintable()
        assert len(line) < 600
    return "\n".join(faults)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "w.ckpt"


@pytest.mark.parametrize("claim", CLAIMS)
def test_lengths_are_not_believed(path: Path, claim: int) -> None:
    """Wherever a length or a size stands; nothing is allocated for it."""
    lying = varint(8 + 2) + varint(claim) + bytes(64)
    for content in (lying, field(1, lying), field(1, field(1, b"w") + varint(2 * 8 + 2) + lying[1:])):
        with _bounded(1 << 20):
            assert "truncated" in _read_or_refused(CKPT, path, content)
        with _bounded(1 << 20):
            assert _read_or_refused(STRATEGY, path, number(1, 0) + content)
    for kind in ("Float32", "str"):
        with _bounded(1 << 20):
            assert _read_or_refused(CKPT, path, value("w", [claim, claim], kind, bytes(8)))


@pytest.mark.parametrize(
    ("reader", "content", "said"),
    [
        (STRATEGY, number(1, 0) * 2, "field 1 is not one of a strategy file, or once too often"),
        (
            STRATEGY,
            number(1, 0) + field(3, field(1, b"") * 200_000),
            "must have a name and what belongs to it",
        ),
        (
            STRATEGY,
            number(1, 0) + field(3, field(1, b"w") + field(2, field(2, b"") * 99)),
            "or once too often",
        ),
        (
            STRATEGY,
            number(1, 0) + field(2, field(1, b"op") + field(2, field(2, b"") * 200_000)),
            "operator 'op': field 2 is not one of a strategy, or once too often",
        ),
        (
            CKPT,
            field(1, field(1, b"w") + field(2, number(1, 1) * 200_000)),
            "tensor 'w': .*more than 32 dims",
        ),
    ],
)
def test_there_is_an_end_to_what_is_repeated(path: Path, reader: Reader, content: bytes, said: str) -> None:
    """Hundreds of thousands of fields of two bytes do not become as many objects."""
    with _bounded(4 * len(content) + (1 << 20)):
        assert re.search(said, _read_or_refused(reader, path, content))
