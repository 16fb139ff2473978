"""Adapted parameters on one rank, and what kernels keep of adapters: slot 0 is the base."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mindbatch.kernels.arrays import KernelParameter


class AdaptedParameter(NamedTuple):
    """Inputs of an adapted cell after the slots, and the shape it is made for."""

    stored: tuple[KernelParameter, ...]
    shape: AdaptedShape


class AdapterStore(ABC):
    """Memory for some adapters at a time; the graphs read in the next step what was written before it."""

    parameters: Mapping[str, AdaptedParameter]

    @abstractmethod
    def write(self, slot: int, parts: AdapterParts) -> None:
        """Puts an adapter in a slot, from 1 on, in place of what was there."""


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
"""Ranks of one adapter, by parameter: the rank of each part, 0 for none, or WHOLE_WEIGHT."""
AdapterParts = Mapping[str, Sequence[LowRankPart | WholePart]]
"""Parts of one adapter: what it does, by parameter."""
