"""Pearson's chi-square test, without the seconds that scipy.stats takes to import."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import settings
from numpy.typing import ArrayLike
from scipy.special import chdtrc

SIGNIFICANCE = 1e-3


def draws(count: int, *, thorough: int) -> int:
    """Draws to count: few in each run, which no wrong distribution passes; many with the long profile."""
    return thorough if settings.get_current_profile_name() == "thorough" else count


def p_value(observed: ArrayLike, expected: ArrayLike) -> float:
    """The chance of counts at least as far from `expected` as `observed` [N]; both have the same sum."""
    seen, hoped = np.asarray(observed, float), np.asarray(expected, float)
    assert math.isclose(seen.sum(), hoped.sum(), rel_tol=1e-6)
    return float(chdtrc(seen.size - 1, ((seen - hoped) ** 2 / hoped).sum()))


def assert_distributed(counts: Counter[Any], chances: Mapping[Any, float]) -> None:
    """`counts` of draws from fixed seeds against exact chances; rare outcomes are counted as one."""
    total = sum(counts.values())
    assert math.isclose(sum(chances.values()), 1, abs_tol=1e-5)
    assert all(chances.get(outcome, 0) > 0 for outcome in counts)
    common = [outcome for outcome, chance in chances.items() if chance * total >= 5]
    expected = [chances[outcome] * total for outcome in common]
    observed = [counts[outcome] for outcome in common]
    if (rest := total - sum(expected)) > 0.5:
        expected.append(rest)
        observed.append(total - sum(observed))
    scale = sum(observed) / sum(expected)
    assert p_value(observed, [value * scale for value in expected]) > SIGNIFICANCE
