"""Numbers as people read them: with their nouns, memory, lengths of time, days, ranges, tables."""

import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from typing import TypeVar


def counted(number: int, noun: str) -> str:
    """Formats a number with its noun: 1 row, 2,000 rows."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def decimal(value: float, form: str) -> str:
    """Formats a number by a format such as ".2f"; one that rounds to 0 has no minus."""
    text = format(value, form)
    return text if text.strip("+-0.,%") else format(0.0, form)


_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def size(count: float) -> str:
    """Formats an amount of memory."""
    for unit in _UNITS[:-1]:
        if round(count, 1) < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} {_UNITS[-1]}"


def duration(seconds: float) -> str:
    """Formats a length of time in its two largest units, or with two digits."""
    minutes, hours = seconds / 60, seconds / 3600
    if seconds < 1:
        return f"{round(seconds, 3):.2g} s"
    if minutes < 2:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{minutes:.0f} min" if hours < 2 else f"{int(hours)} h {int(minutes % 60)} min"


def per_second(count: float, seconds: float) -> float:
    """Returns the mean rate; 0 if no time has passed."""
    return count / seconds if seconds > 0 else 0.0


DAY_RULE = "must be a day as YYYY-MM-DD, like 2026-07-31"
_FORM = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


def today() -> str:
    """Returns the local day, as YYYY-MM-DD."""
    return date.today().isoformat()


def is_day(text: str) -> bool:
    try:
        return bool(_FORM.fullmatch(text) and date.fromisoformat(text))
    except ValueError:
        return False


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


def ranges(numbers: Sequence[int], to: str = "-") -> str:
    """Formats rising numbers as 0-3, 8, 12-15, with `to` between the ends of a range."""
    groups: list[list[int]] = []
    for number in numbers:
        if groups and number == groups[-1][-1] + 1:
            groups[-1].append(number)
        else:
            groups.append([number])
    return ", ".join(str(g[0]) if len(g) == 1 else f"{g[0]}{to}{g[-1]}" for g in groups)


def shape_text(shape: Iterable[object]) -> str:
    """Formats sizes, or parts of a shape, as [4, 16]."""
    return f"[{', '.join(map(str, shape))}]"


def in_parts(columns: Sequence[Column], table_of: Callable[[Sequence[Column]], list[str]]) -> str:
    """Formats a table of all columns, or several tables that fit the width of the terminal."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDEST
    for count in range(len(columns), 0, -1):
        parts = [table_of(columns[first : first + count]) for first in range(0, len(columns), count)]
        if all(len(line) <= width for part in parts for line in part):
            break
    return "\n\n".join("\n".join(part) for part in parts)
