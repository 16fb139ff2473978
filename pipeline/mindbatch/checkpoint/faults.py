"""How names and lists of faults from a checkpoint are put into short, printable, one-line messages."""

import difflib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from mindbatch.errors import CheckpointError

MAX_LINES = 10
_MAX_SHOWN = 80

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
    near = difflib.get_close_matches(name, candidates, n=1, cutoff=0.6)
    return f"; did you mean {shown(near[0])}?" if near else ""


def raise_if_any(faults: Sequence[str], where: str | None = None) -> None:
    """Raises CheckpointError with the first faults, each after the file name `where`, if there are any."""
    prefix = f"{where}: " if where else ""
    if faults:
        raise CheckpointError(prefix + line for line in first_lines(faults, str))


@contextmanager
def collecting(faults: list[str]) -> Iterator[None]:
    """Turns a CheckpointError of the block into entries of `faults`, so that later parts are checked too."""
    try:
        yield
    except CheckpointError as error:
        faults.extend(error.faults)
