"""Combinations of which a few always run, fewer of them with --fast, and all on demand."""

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest


def each_once(*axes: Iterable[Any], fast: int | None = None) -> list[Any]:
    """All combinations of the axes' values, as parameters; those beyond one for each value are on demand.

    The n-th values of all axes come together, the shorter axes beginning again.

    fast: so many of those that always run are not slow; None: all.
    """
    lists = [list(axis) for axis in axes]
    always = [tuple(n % len(values) for values in lists) for n in range(max(map(len, lists)))]

    def marks(combination: tuple[int, ...]) -> Iterable[pytest.MarkDecorator]:
        if combination not in always:
            return (pytest.mark.on_demand,)
        return () if combination in always[:fast] else (pytest.mark.slow,)

    places = product(*(range(len(values)) for values in lists))
    return [
        pytest.param(
            *(values[place] for values, place in zip(lists, combination, strict=True)),
            marks=marks(combination),
        )
        for combination in places
    ]
