"""Error lines about checkpoints: short, printable, counted, and collected into CheckpointError."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from mindbatch.io import error_lines
from mindbatch.io.errors import CheckpointError

MAX_LINES = 10

# Names from others' files are printed in ASCII: letters that look alike must not hide what is different.
shown = partial(error_lines.shown, longest=80, notation=partial(error_lines.as_written, text_notation=ascii))
did_you_mean = partial(error_lines.did_you_mean, notation=shown)

Item = TypeVar("Item")
_COUNTING = re.compile(r"(?:^|: )\.\.\. and ([0-9]{1,9}) more ")


def first_lines(
    items: Sequence[Item], describe: Callable[[Item], str], limit: int = MAX_LINES, noun: str = "errors"
) -> list[str]:
    """A line for each of the first `limit` items, and one more that counts the rest."""
    lines = [describe(item) for item in items[:limit]]
    if len(items) > limit:
        lines.append(f"... and {len(items) - limit} more {noun}")
    return lines


def raise_if_any(errors: Sequence[str], where: str | None = None) -> None:
    """Raises CheckpointError with the first errors, each after the file name `where`, if there are any.

    A line that counts others, of `first_lines`, is counted as these.
    """
    if not errors:
        return
    lines, rest = [*errors[:MAX_LINES]], sum(map(_number, errors[MAX_LINES:]))
    if rest:
        lines.append(f"... and {rest} more error{'s' * (rest > 1)}")
    prefix = f"{where}: " if where else ""
    raise CheckpointError(prefix + line for line in lines)


def _number(line: str) -> int:
    counting = _COUNTING.search(line)
    return int(counting[1]) if counting else 1


@contextmanager
def located(where: object) -> Iterator[None]:
    """Puts the file or folder before each line of a CheckpointError of the block."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{where}: {line}" for line in error.lines) from error


@contextmanager
def collecting(errors: list[str]) -> Iterator[None]:
    """Turns a CheckpointError of the block into entries of `errors`, so that later parts are checked too."""
    try:
        yield
    except CheckpointError as error:
        errors.extend(error.lines)
