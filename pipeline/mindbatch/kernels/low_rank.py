"""What adapters add to the parameters of a model, on one rank: plain arrays and sizes, without MindSpore."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float32]


class LowRankPart(NamedTuple):
    """x A^T B^T for one part of a parameter.

    part: its number among the widths. a: [rank, inputs]. b: [outputs, rank], times the scaling.
    """

    part: int
    a: Matrix
    b: Matrix


@dataclass(frozen=True)
class AdaptedShape:
    """A parameter that adapters add to.

    widths: outputs of its parts, one after another, each with a pair of matrices of its own.
    """

    inputs: int
    widths: tuple[int, ...]


Ranks = Mapping[str, Sequence[int]]
"""Of one adapter: by parameter, the rank of each part; 0 where it has none."""
AdapterParts = Mapping[str, Sequence[LowRankPart]]
"""Of one adapter: what it adds, by parameter."""
