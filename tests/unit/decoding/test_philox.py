"""Philox4x32-10 against Random123's known answers; uniform numbers and their independence."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from mindbatch.decoding.draws import philox4x32, philox4x32_by_numpy, row_hash, uniform

# counter words, key words, result words: file kat_vectors of Random123, lines "philox4x32 10".
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(lines: list[str]) -> NDArray[np.uint64]:
    return np.array([[int(word, 16) for word in line.split()] for line in lines], dtype=np.uint64).T


@pytest.mark.parametrize("compute", [philox4x32, philox4x32_by_numpy])
def test_known_answers(compute: Callable[..., NDArray[np.uint64]]) -> None:
    counters, keys, results = (words(list(column)) for column in zip(*KNOWN_ANSWERS, strict=True))
    np.testing.assert_array_equal(compute(counters, keys), results)


def test_uniform_reads_seed_row_sample_and_step_in_place() -> None:
    seed, row = 0x299F31D0A4093822, 0x85A308D3243F6A88
    [number] = uniform(seed, row, 0x13198A2E, 0x03707344)
    assert number == ((0xD16CFE09 >> 5) * 2**26 + (0x94FDCCEB >> 6)) / 2**53


def test_largest_seed_and_hash_are_accepted() -> None:
    [number] = uniform([2**64 - 1], [2**64 - 1], [0], [0])
    assert 0 <= number < 1


def test_a_place_does_not_depend_on_the_others() -> None:
    together = uniform([1, 2, 3], [7, 8, 9], [0, 1, 2], [5, 6, 7])
    alone = [uniform(seed, seed + 6, seed - 1, seed + 4)[0] for seed in (1, 2, 3)]
    assert together.tolist() == alone


@pytest.mark.parametrize("axis", range(4))
def test_independent_along_each_coordinate(axis: int) -> None:
    """Neighbours along seed, row, sample or step: uniform, all different and uncorrelated at several lags."""
    count = 20_000
    places: list[object] = [3, row_hash("row"), 2, 11]
    places[axis] = np.arange(count, dtype=np.uint64)
    numbers = uniform(*places)  # type: ignore[arg-type]
    steps = np.arange(count) / count  # Kolmogorov and Smirnov; 1.95 is passed once in a thousand times
    assert np.abs(np.sort(numbers) - steps).max() < 1.95 / np.sqrt(count)
    assert len(np.unique(numbers)) == count
    for lag in (1, 2, 7):
        assert abs(np.corrcoef(numbers[:-lag], numbers[lag:])[0, 1]) < 4 / np.sqrt(count)


def test_streams_of_neighbouring_coordinates_are_uncorrelated() -> None:
    steps = np.arange(20_000)
    base = uniform(1, 1, 1, steps)
    for place in ((2, 1, 1), (1, 2, 1), (1, 1, 2), (1, 1 << 32, 1), (1 << 32, 1, 1)):
        assert abs(np.corrcoef(base, uniform(*place, steps))[0, 1]) < 4 / np.sqrt(len(steps))


def test_row_hash_is_fixed_for_ever() -> None:
    """A change would change every sampled text of earlier runs: the values are those of `b2sum -l 64`."""
    assert row_hash("") == int.from_bytes(bytes.fromhex("e4a6a0577479b2b4"), "little")
    assert row_hash("row-1") != row_hash("row-2")
    assert row_hash("\ud800") >= 0
