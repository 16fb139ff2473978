"""Text as people read it: aligned columns, ranges of numbers, amounts of memory and lengths of time."""

from collections.abc import Sequence


def table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Lines with two spaces between the columns; the columns `right` are numbers, aligned at their ends."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def ranges(numbers: Sequence[int]) -> str:
    """Rising numbers as 0-3, 8, 12-15."""
    groups: list[list[int]] = []
    for number in numbers:
        if groups and number == groups[-1][-1] + 1:
            groups[-1].append(number)
        else:
            groups.append([number])
    return ", ".join(str(g[0]) if len(g) == 1 else f"{g[0]}-{g[-1]}" for g in groups)


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 row, 2,000 rows."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def size(count: float) -> str:
    """An amount of memory as people read it."""
    for unit in _UNITS[:-1]:
        if round(count, 1) < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} {_UNITS[-1]}"


def duration(seconds: float) -> str:
    """A length of time in its two largest units."""
    minutes, hours = seconds / 60, seconds / 3600
    if minutes < 2:
        return f"{seconds:.0f} s"
    return f"{minutes:.0f} min" if hours < 2 else f"{int(hours)} h {int(minutes % 60)} min"
