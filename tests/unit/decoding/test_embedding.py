"""Pooling of a prompt's hidden states."""

from typing import Any

import numpy as np
import pytest

from mindbatch.decoding import DecodingParams
from mindbatch.decoding.embedding import Embedding
from mindbatch.decoding.row import NotFiniteError, Row
from mindbatch.decoding.strategy import GroupView

HIDDEN = np.asarray([[3, 0, 0], [0, 4, 0], [0, 0, 12]], np.float32)


def decided(pooling: str, hidden: Any) -> Any:
    row = Row(DecodingParams(pooling=pooling), (5, 6, 7), [], (), 0)
    [decision] = Embedding().advance([GroupView([row], prompt_hidden=hidden)], np.zeros((1, 4), np.float32))
    return decision


@pytest.mark.parametrize(("pooling", "vector"), [("last", (0, 0, 1)), ("mean", (3 / 13, 4 / 13, 12 / 13))])
def test_the_vector_has_length_one(pooling: str, vector: tuple[float, ...]) -> None:
    [result] = decided(pooling, HIDDEN).results
    assert result.embedding == pytest.approx(vector)
    assert (result.token_ids, result.finish_reason) == ((), "stop")


def test_states_of_zero_have_no_direction() -> None:
    assert decided("mean", 0 * HIDDEN).results[0].embedding == (0, 0, 0)


def test_states_that_are_no_numbers_end_the_row() -> None:
    assert isinstance(decided("last", HIDDEN * np.float32(np.nan)).error, NotFiniteError)
