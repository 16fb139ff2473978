"""Slopes of ALiBi: those of the paper, and of its authors' code where the heads are no power of two."""

import pytest

from mindbatch.kernels.shapes import Alibi, alibi_slopes


@pytest.mark.parametrize(
    ("heads", "slopes"),
    [
        (1, [2**-8]),
        (2, [2**-4, 2**-8]),
        (8, [2**-power for power in range(1, 9)]),
        (3, [2**-4, 2**-8, 2**-2]),
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
        (12, [2**-power for power in range(1, 9)] + [2 ** -(power + 0.5) for power in range(4)]),
    ],
)
def test_slopes(heads: int, slopes: list[float]) -> None:
    assert alibi_slopes(heads) == pytest.approx(slopes, rel=1e-6)


def test_a_rank_has_the_slopes_of_its_heads() -> None:
    whole = Alibi(alibi_slopes(6), factor=0.5, is_rounded=True)
    parts = [whole.of_heads(first, first + 2) for first in (0, 2, 4)]
    assert sum((part.slopes for part in parts), ()) == whole.slopes
    assert {(part.factor, part.is_rounded) for part in parts} == {(0.5, True)}
