"""ALiBi: scores of attention fall with the distance between query and key, by the slope of each head.

Source: Press, Smith and Lewis, "Train Short, Test Long: Attention with Linear Biases" (2022).
"""

from __future__ import annotations

import math
from ctypes import c_float
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Alibi:
    """The score of a key at position p is higher by factor * slope * p.

    slopes: of each head.
    is_rounded: slope, position and their product are bfloat16, as Falcon was trained.
    """

    slopes: tuple[float, ...]
    factor: float = 1.0
    is_rounded: bool = False

    def of_heads(self, first: int, last: int) -> Alibi:
        """The same of the heads from first to last - 1."""
        return replace(self, slopes=self.slopes[first:last])


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """The paper's slopes for a power of two n, powers of 2^(-8 / n); behind them every other one of 2 n."""
    whole = 1 << (heads.bit_length() - 1)
    first, between = _base(whole), _base(2 * whole)
    powers = [first**power for power in range(1, whole + 1)]
    powers += [between**power for power in range(1, 2 * (heads - whole), 2)]
    return tuple(c_float(power).value for power in powers)


def _base(heads: int) -> float:
    """2^(-8 / heads) in float32, of which the models take powers."""
    return c_float(2 ** -(2 ** -(math.log2(heads) - 3))).value
