"""How names and lists of faults from a checkpoint are put into short, printable, one-line messages."""

import difflib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from heapq import nlargest
from typing import TypeVar

from mindbatch.errors import CheckpointError

MAX_LINES = 10
_MAX_SHOWN = 80
_MAX_COMPARED = 32
_MAX_CANDIDATES = 20_000  # more than any model has tensors of other names
_MAX_COMPARED_LENGTH = 512

Item = TypeVar("Item")


def shown(value: object) -> str:
    """An untrusted value as one short ASCII line, quotes included when it is a string."""
    text = ascii(value)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


def first_lines(
    items: Sequence[Item], describe: Callable[[Item], str], limit: int = MAX_LINES, noun: str = "faults"
) -> list[str]:
    """A line for each of the first `limit` items, and one more that counts the rest."""
    lines = [describe(item) for item in items[:limit]]
    if len(items) > limit:
        lines.append(f"... and {len(items) - limit} more {noun}")
    return lines


def did_you_mean(name: str, candidates: Collection[str]) -> str:
    """`"; did you mean 'x'?"` for the candidate nearest to `name`, or nothing."""
    if len(name) > _MAX_COMPARED_LENGTH or len(candidates) > _MAX_CANDIDATES:
        return ""
    near = difflib.get_close_matches(name, _likely(name, candidates), n=1, cutoff=0.6)
    return f"; did you mean {shown(near[0])}?" if near else ""


def _likely(name: str, candidates: Collection[str]) -> Collection[str]:
    """A few: with all of them difflib takes half a minute for 60 layers with names of another kind."""
    if len(candidates) <= _MAX_COMPARED:
        return candidates
    pairs = _pairs(name)
    return nlargest(_MAX_COMPARED, candidates, key=lambda each: len(pairs & _pairs(each)) / (len(each) + 1))


def _pairs(text: str) -> set[str]:
    """Its neighbouring characters."""
    return {text[place : place + 2] for place in range(len(text) - 1)}


def raise_if_any(faults: Sequence[str], where: str | None = None) -> None:
    """Raises CheckpointError with the first faults, each after the file name `where`, if there are any."""
    prefix = f"{where}: " if where else ""
    if faults:
        raise CheckpointError(prefix + line for line in first_lines(faults, str))


@contextmanager
def located(where: object) -> Iterator[None]:
    """Puts the file or folder before each line of a CheckpointError of the block."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{where}: {line}" for line in error.faults) from error


@contextmanager
def collecting(faults: list[str]) -> Iterator[None]:
    """Turns a CheckpointError of the block into entries of `faults`, so that later parts are checked too."""
    try:
        yield
    except CheckpointError as error:
        faults.extend(error.faults)
