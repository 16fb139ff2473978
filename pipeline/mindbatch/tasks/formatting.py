"""Text as people read it: aligned columns, and ranges of numbers."""

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
