"""Arithmetic of boxes, held against sets of elements."""

from collections.abc import Iterable
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindbatch.checkpoint.placement.regions import (
    Region,
    difference,
    first_overlap,
    full_region,
    intersection,
    is_inside,
    merged,
    moved,
    uncovered,
    volume,
)

RANGES = st.tuples(st.integers(0, 5), st.integers(0, 5)).map(lambda ends: (min(ends), max(ends)))
BOXES = st.tuples(RANGES, RANGES)


def elements(box: Region) -> set[tuple[int, ...]]:
    return set(product(*(range(start, stop) for start, stop in box)))


def once(boxes: Iterable[Region]) -> set[tuple[int, ...]]:
    """The elements of the boxes, which must be disjoint."""
    found: set[tuple[int, ...]] = set()
    for box in boxes:
        assert not found & elements(box)
        found |= elements(box)
    return found


@given(BOXES, BOXES)
def test_intersection_and_difference_are_those_of_sets(one: Region, other: Region) -> None:
    common = intersection(one, other)
    assert (elements(common) if common else set()) == elements(one) & elements(other)
    if elements(one):
        assert once(difference(one, other)) == elements(one) - elements(other)
        assert is_inside(one, other) == (elements(one) <= elements(other))
    assert volume(one) == len(elements(one))


@given(BOXES, st.lists(BOXES, max_size=4))
def test_uncovered_is_what_is_left(box: Region, covers: list[Region]) -> None:
    left = elements(box).difference(*map(elements, covers))
    assert once(uncovered(box, covers)) == left


@given(st.lists(BOXES, max_size=5))
def test_first_overlap_is_in_two_boxes(boxes: list[Region]) -> None:
    shared = {
        element
        for number, box in enumerate(boxes)
        for element in elements(box)
        if any(element in elements(other) for other in boxes[:number])
    }
    found = first_overlap(boxes)
    assert (found is None) == (not shared)
    assert found is None or elements(found) <= shared


def test_scalars_have_one_element() -> None:
    assert volume(()) == 1
    assert intersection((), ()) == ()
    assert difference((), ()) == []
    assert uncovered((), []) == [()]
    assert first_overlap([()]) is None
    assert first_overlap([(), ()]) == ()
    assert merged([]) == []


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 3), (3, 1), (2, 3)])
def test_a_grid_is_merged_into_one_box(rows: int, columns: int) -> None:
    cells = [
        ((row, row + rows), (column, column + columns))
        for column in range(0, 6, columns)
        for row in range(0, 6, rows)
    ]
    whole, shifted = full_region((6, 6)), ((10, 16), (0, 6))
    assert merged((cell, moved(cell, whole, shifted)) for cell in cells) == [(whole, shifted)]


@given(st.permutations([(row, column) for row in range(3) for column in range(3)]), st.integers(1, 9))
def test_merging_keeps_every_element_and_its_place(cells: list[tuple[int, int]], count: int) -> None:
    there = {cell: ((cell[0], cell[0] + 1), (cell[1], cell[1] + 1)) for cell in cells}
    here = {cell: ((2 * cell[0], 2 * cell[0] + 1), (cell[1], cell[1] + 1)) for cell in cells}
    found = merged((there[cell], here[cell]) for cell in cells[:count])
    filled = np.full((6, 3, 2), -1)
    for source, target in found:
        for element, place in zip(sorted(elements(source)), sorted(elements(target)), strict=True):
            filled[place] = element
    for cell in cells:
        expected = cell if cell in cells[:count] else (-1, -1)
        assert tuple(filled[2 * cell[0], cell[1]]) == expected
    assert [target for _, target in found] == sorted(target for _, target in found)
