"""What the tests of single processors share: scores of a small vocabulary after a row's processors."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mindbatch.decoding import DecodingParams
from mindbatch.decoding.processors import adjust
from mindbatch.decoding.row import Row

Adjusted = Callable[..., list[float]]


@pytest.fixture
def adjusted() -> Adjusted:
    """The scores after the processors; 8 zeros unless given. Token 7 ends unless another is named."""

    def of(
        prompt: Sequence[int],
        output: Sequence[int],
        scores: Sequence[float] = (0,) * 8,
        eos: tuple[int, ...] = (7,),
        **params: Any,
    ) -> list[float]:
        given: NDArray[np.float32] = np.array(scores, dtype=np.float32)
        row = Row(DecodingParams(**params), prompt, list(output), eos, row_hash=1, key="r")
        return [float(score) for score in adjust(given, row)]

    return of


@pytest.fixture
def forbidden(adjusted: Adjusted) -> Callable[..., set[int]]:
    """The tokens that the processors put at minus infinity."""

    def of(*arguments: Any, **params: Any) -> set[int]:
        scores = adjusted(*arguments, **params)
        return {token for token, score in enumerate(scores) if score == -np.inf}

    return of
