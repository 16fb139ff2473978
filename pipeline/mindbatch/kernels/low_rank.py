"""What adapters do to the parameters of a model, on one rank: plain arrays and sizes, without MindSpore."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


class LowRankPart(NamedTuple):
    """For one part of a parameter y becomes y * scale + offset + x A^T B^T; y has the parameter's own bias.

    part: its number among the widths. a: [rank, inputs]. b: [outputs, rank]. scale, offset: [outputs].
    """

    part: int
    a: Floats
    b: Floats
    scale: Floats | None = None
    offset: Floats | None = None


class WholePart(NamedTuple):
    """A weight in place of the parameter's own, [outputs, inputs] or [vocabulary, width]; `part` is 0."""

    part: int
    weight: Floats


@dataclass(frozen=True)
class AdaptedShape:
    """A parameter that adapters act on.

    inputs: numbers of x; of an embedding its tokens, x being one-hot.
    widths: outputs of its parts, one after another, each with a pair of matrices of its own.
    has_whole: some adapter has a whole weight for it.
    """

    inputs: int
    widths: tuple[int, ...]
    is_embedding: bool = False
    has_whole: bool = False


WHOLE_WEIGHT = -1
Ranks = Mapping[str, Sequence[int]]
"""Of one adapter, by parameter: the rank of each part, 0 for none, or WHOLE_WEIGHT."""
AdapterParts = Mapping[str, Sequence[LowRankPart | WholePart]]
"""Of one adapter: what it does, by parameter."""
