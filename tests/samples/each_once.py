"""Combinations of which a few always run, and all on demand."""

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest


def each_once(*axes: Iterable[Any]) -> list[Any]:
    """All combinations of the axes' values, as parameters; those beyond one for each value are on demand.

    The n-th values of all axes come together, the shorter axes beginning again.
    """
    lists = [list(axis) for axis in axes]
    always = {tuple(n % len(values) for values in lists) for n in range(max(map(len, lists)))}
    places = product(*(range(len(values)) for values in lists))
    return [
        pytest.param(
            *(values[place] for values, place in zip(lists, combination, strict=True)),
            marks=() if combination in always else pytest.mark.on_demand,
        )
        for combination in places
    ]
