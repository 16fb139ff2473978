"""The table of a layout: how each tensor is cut, and the bytes of each rank."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mindbatch.checkpoint.placement.layout_table import LayoutRow, rank_totals
from mindbatch.screen_text import printable
from mindbatch.tasks.formatting import ranges, table

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_TITLES = ["tensor", "shape", "cut", "ranks", "shape on a rank", "bytes on a rank", "bytes in all"]


def layout_page(rows: Sequence[LayoutRow]) -> str:
    """The tensors, those of layers that are cut alike in one line, and the sums by rank.

    Layers of several stages share a line, too: each is on the ranks of its own stage.
    """
    if not rows:
        return "no tensors"
    alike: dict[tuple[object, ...], list[LayoutRow]] = {}
    for row in rows:
        held = tuple(shape for shape in row.local_shapes if shape is not None)
        key = (_family(row.name), row.shape, row.itemsize, row.cut, held)
        alike.setdefault(key, []).append(row)
    cells = [line for group in alike.values() for line in _lines(group)]
    return "\n".join([*table([_TITLES, *cells], right=(5, 6)), "", *_sums(rows)])


def _lines(group: Sequence[LayoutRow]) -> list[list[str]]:
    """A line for each shape that ranks have of a tensor: one, unless it is cut unevenly."""
    row = group[0]
    lines: list[list[str]] = []
    for shape, ranks in _ranks_by_shape(row).items():
        nbytes = row.rank_bytes[ranks[0]]
        numbers = [f"{nbytes:,}", f"{nbytes * len(ranks) * len(group):,}"]
        places = {rank for each in group for rank in _ranks_by_shape(each)[shape]}
        by_stage = ", by stage" if len(places) > len(ranks) else ""
        where = f"{ranges(sorted(places))}{by_stage}"
        lines.append([_names(group), _shape(row.shape), row.cut, where, _shape(shape), *numbers])
    return lines


def _ranks_by_shape(row: LayoutRow) -> dict[tuple[int, ...], list[int]]:
    found: dict[tuple[int, ...], list[int]] = {}
    for rank, shape in enumerate(row.local_shapes):
        if shape is not None:
            found.setdefault(shape, []).append(rank)
    return found


def _family(name: str) -> str:
    """The name without its number, when it has one: what the tensors of all layers have in common."""
    return _NUMBER.sub("[]", name) if len(_NUMBER.findall(name)) == 1 else name


def _names(group: Sequence[LayoutRow]) -> str:
    """The names of a group in one: model.layers.[0-3, 6].norm.weight."""
    if len(group) == 1:
        return printable(group[0].name)
    layers = ranges(sorted(int(number) for row in group for number in _NUMBER.findall(row.name)))
    return printable(_NUMBER.sub(f"[{layers}]", group[0].name))


def _shape(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _sums(rows: Sequence[LayoutRow]) -> list[str]:
    totals = rank_totals(rows)
    alike: dict[tuple[int, int], list[int]] = {}
    for rank, total in enumerate(totals):
        alike.setdefault(total, []).append(rank)
    lines = [["ranks", "tensors", "bytes on a rank"]]
    lines += [[ranges(ranks), f"{count:,}", f"{nbytes:,}"] for (count, nbytes), ranks in alike.items()]
    stored, full = sum(nbytes for _, nbytes in totals), sum(row.nbytes for row in rows)
    return [
        *table(lines, right=(1, 2)),
        "",
        f"{len(rows):,} tensors of {full:,} bytes; {stored:,} bytes on {_ranks(len(totals))}",
    ]


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count:,} ranks"
