"""Draft: tokens that somebody guessed for a row, to be verified by the model in one step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True, frozen=True)
class Draft:
    """Tokens that may follow a row's output.

    `probabilities` has for each of them the distribution [V] that it was drawn from; None says that the
    tokens were not drawn but certain, as those found in the prompt are.
    """

    token_ids: tuple[int, ...]
    probabilities: tuple[NDArray[np.float32], ...] | None = None
