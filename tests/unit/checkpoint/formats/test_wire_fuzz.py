"""Any message of Protocol Buffers, right or wrong, is read as a .ckpt or a strategy, or refused; quickly."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from ckpt_bytes import field, number, tensor, value, varint
from hypothesis import given
from hypothesis import strategies as st

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

integers = st.integers(0, 5) | st.sampled_from(CLAIMS) | st.integers(0, 2**64 - 1)
texts = st.sampled_from([b"w", b"Float32", b"str", b"Int8", b"../x", b"\xff", b"1-w"]) | st.binary(max_size=9)


def _one_field(inner: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """A field of either kind, or one with a length that is not its own."""
    numbers = st.integers(0, 9)
    lying = st.builds(
        lambda tag, length, rest: varint(tag * 8 + 2) + varint(length) + rest, numbers, integers, inner
    )
    return (
        st.builds(number, numbers, integers)
        | st.builds(field, numbers, inner)
        | st.builds(field, numbers, texts)
        | lying
    )


messages = st.recursive(
    st.lists(st.builds(number, st.integers(0, 9), integers), max_size=4).map(b"".join) | texts,
    lambda inner: st.lists(_one_field(inner), max_size=5).map(b"".join),
    max_leaves=12,
)
dims = st.lists(st.integers(-1, 4) | st.sampled_from(CLAIMS), max_size=4)
kinds = st.sampled_from(["Float32", "Int8", "str", "BFloat16", "Float", ""])
entries = st.builds(
    value, st.sampled_from(["w", "v", "", "../x", "\n"]), dims, kinds, st.binary(max_size=16)
)  # fmt: skip
tensors = st.builds(tensor, dims, kinds, st.binary(max_size=8))
odd_entries = st.builds(
    lambda inner, more: field(1, field(1, b"w") + field(2, inner) + more), tensors, messages
)
files = st.lists(entries | odd_entries | messages, max_size=4).map(b"".join)

rows = st.lists(st.builds(number, st.just(1), integers), max_size=4).map(b"".join)
layout_fields = st.lists(
    st.builds(field, st.integers(1, 4), rows) | st.builds(number, st.integers(5, 7), integers), max_size=9
).map(b"".join)
layouts = st.builds(
    lambda name, inner: field(3, field(1, name) + field(2, inner)), texts, layout_fields | messages
)
operators = st.builds(lambda name, inner: field(2, field(1, name) + field(2, inner)), texts, messages)
strategies = st.lists(layouts | operators | messages, max_size=4).map(
    lambda parts: number(1, 0) + b"".join(parts)
)


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
        faults = error.faults or ("a refusal without a word",)
    for line in faults:
        assert str(path) in line
        assert line.isprintable()
        assert len(line) < 600
    return "\n".join(faults)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "w.ckpt"


@given(content=files)
def test_any_ckpt_is_read_or_refused(path: Path, content: bytes) -> None:
    _read_or_refused(CKPT, path, content)


@given(content=strategies)
def test_any_strategy_is_read_or_refused(path: Path, content: bytes) -> None:
    _read_or_refused(STRATEGY, path, content)


def test_what_is_right_is_read(path: Path) -> None:
    assert not _read_or_refused(CKPT, path, value("w", [2], "Float32", bytes(8)))
    layout = field(1, number(1, 2)) + field(2, number(1, 0)) + number(5, 0) + number(6, 0) + number(7, 0)
    assert not _read_or_refused(STRATEGY, path, number(1, 0) + field(3, field(1, b"w") + field(2, layout)))


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
