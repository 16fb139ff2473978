"""Log-probabilities of raw logits: against SciPy in float64, and alone as in a batch."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import log_softmax

from mindbatch.decoding.row import token_logprobs
from mindbatch.decoding.softmax import likeliest_and_normalisers


def random_logits(rows: int, size: int) -> NDArray[np.float32]:
    return (np.random.default_rng(size).standard_normal((rows, size)) * 5 + 40).astype(np.float32)


@pytest.mark.parametrize("size", [1, 7, 1000, 50_257])
def test_equal_to_float64(size: int) -> None:
    logits = random_logits(3, size)
    token_ids = np.array([0, size // 2, size - 1])
    exact = log_softmax(logits.astype(np.float64), axis=1)
    for row, (token, found) in enumerate(zip(token_ids, token_logprobs(logits, token_ids, 4), strict=True)):
        assert int(token) in found
        likeliest = np.argsort(-exact[row], kind="stable")[: min(4, size)].tolist()
        assert list(found)[: len(likeliest)] == likeliest
        for place, logprob in found.items():
            assert logprob == pytest.approx(exact[row, place], abs=5e-6)


def test_none_asked_for_gives_the_token_alone() -> None:
    [found] = token_logprobs(np.zeros((1, 4), dtype=np.float32), np.array([2]), 0)
    assert found == pytest.approx({2: -np.log(4)})


@pytest.mark.parametrize(("rows", "size"), [(40, 1), (40, 13), (300, 1000), (5, 50_257)])
def test_a_row_alone_has_the_same_bits(rows: int, size: int) -> None:
    logits = random_logits(rows, size)
    likeliest, normalisers = likeliest_and_normalisers(logits)
    assert likeliest.tolist() == logits.argmax(axis=1).tolist()
    alone = [likeliest_and_normalisers(logits[[row]])[1][0] for row in range(rows)]
    assert normalisers.tolist() == alone
