"""Text as people read it: tables of aligned columns, ranges of numbers."""

import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

Column = TypeVar("Column")

WIDEST = 10_000
"""Columns of a page that no terminal shows: lines are not broken for other programs."""


def table(rows: Sequence[Sequence[str]], right: Sequence[int] = (), *, ruled: bool = False) -> list[str]:
    """Lines of aligned columns; the columns `right` are numbers, aligned at their ends.

    ruled: the first row is a heading, with a line below it.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    gap = "   " if ruled else "  "
    lines = [
        gap.join(
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    if ruled:
        lines.insert(1, "\u2500" * (sum(widths) + len(gap) * (len(widths) - 1)))
    return lines


def ranges(numbers: Sequence[int]) -> str:
    """Rising numbers as 0-3, 8, 12-15."""
    groups: list[list[int]] = []
    for number in numbers:
        if groups and number == groups[-1][-1] + 1:
            groups[-1].append(number)
        else:
            groups.append([number])
    return ", ".join(str(g[0]) if len(g) == 1 else f"{g[0]}-{g[-1]}" for g in groups)


def shape_text(shape: Iterable[object]) -> str:
    """Sizes, or parts of a shape, as [4, 16]."""
    return f"[{', '.join(map(str, shape))}]"


def in_parts(columns: Sequence[Column], table_of: Callable[[Sequence[Column]], list[str]]) -> str:
    """A table of all columns; several with as many as the terminal is wide enough for, where it is not."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDEST
    for most in range(len(columns), 0, -1):
        parts = [table_of(columns[first : first + most]) for first in range(0, len(columns), most)]
        if all(len(line) <= width for part in parts for line in part):
            break
    return "\n\n".join("\n".join(part) for part in parts)
