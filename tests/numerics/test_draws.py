"""Tokens that the C++ kernels draw, against the filters by their definitions, with every instruction set."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import plain_filters
from mindbatch.decoding import DecodingParams
from mindbatch.decoding.draws import Draw, draw_tokens
from mindbatch.decoding.filters import sampling_candidates
from mindbatch.decoding.softmax import likeliest_by_numpy

pytestmark = pytest.mark.usefixtures("variant")
UNIFORMS = np.append(np.random.default_rng(7).random(300), [0.0, np.nextafter(1.0, 0.0)])
ROUNDING = 1e-6
SIZES = [1, 2, 17, 1023, 1024, 2500, 50_257]
RULES: list[dict[str, Any]] = [
    {},
    {"temperature": 0.6},
    {"temperature": 30.0, "top_p": 0.999},
    {"top_p": 0.9},
    {"top_p": 0.99},
    {"top_p": 0.5, "temperature": 1.7},
    {"top_p": 1e-3},
    {"top_p": 1e-9},  # as float32, 1 - top_p is 1
    {"top_k": 1},
    {"top_k": 50},
    {"top_k": 3000},
    {"top_k": 20, "top_p": 0.8, "temperature": 0.7},
    {"min_p": 0.05},
    {"top_k": 100, "top_p": 0.95, "min_p": 0.1, "temperature": 1.3},
]


def rows_of(size: int) -> dict[str, NDArray[np.float32]]:
    """Flat, peaked and very peaked scores, some forbidden, many equal ones, all equal."""
    generator = np.random.default_rng(size)
    normal = generator.standard_normal(size).astype(np.float32)
    falling = generator.permutation(-1.6 * np.log(np.arange(1, size + 1))).astype(np.float32)
    forbidden = np.where(generator.random(size) < 0.4, np.float32(-np.inf), normal)
    forbidden[size // 2] = 0.5
    return {
        "flat": normal,
        "peaked": falling + normal,
        "very peaked": 30 * normal,
        "forbidden": forbidden,
        "tied": np.round(2 * normal),
        "equal": np.full(size, -3.25, dtype=np.float32),
    }


def kept(scores: NDArray[np.float32], params: DecodingParams) -> tuple[NDArray[np.bool_], float]:
    """What the filters leave, and how near the sum at the nucleus's edge comes to its limit."""
    mask, doubt = scores > -np.inf, 1.0
    if params.top_k:
        mask &= scores >= np.sort(scores)[-min(params.top_k, scores.size)]
    left = np.where(mask, scores, np.float32(-np.inf))
    if params.top_p < 1:
        mask &= plain_filters.top_p(left, params.top_p)
        order = np.argsort(left, kind="stable")
        sums = np.cumsum(plain_filters.probabilities(left)[order])[:-1]  # the largest always stays
        doubt = float(np.abs(sums - (1 - params.top_p)).min(initial=1.0))
    shares = plain_filters.probabilities(np.where(mask, scores, np.float32(-np.inf)))
    return mask & (shares >= params.min_p * shares.max()), doubt


def drawn_from(scores: Sequence[NDArray[np.float32]], params: DecodingParams) -> list[list[int]]:
    """Tokens at UNIFORMS from each of the scores as logits; from the same as changed ones come the same."""
    logits, draws = np.stack(scores), [Draw(None, params, UNIFORMS)] * len(scores)
    found = draw_tokens(logits, draws)
    changed = draw_tokens(np.zeros_like(logits), [Draw(row, params, UNIFORMS) for row in scores])
    tokens = [tokens for tokens in found.tokens if isinstance(tokens, list)]
    assert tokens == changed.tokens
    places, normalisers = likeliest_by_numpy(logits)
    np.testing.assert_array_equal(found.likeliest, places)
    np.testing.assert_allclose(found.normalisers, normalisers, rtol=1e-6, atol=1e-6)
    return tokens


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_tokens_are_those_of_the_definitions(rule: dict[str, Any], size: int) -> None:
    params = DecodingParams(do_sample=True, **{"top_k": 0, **rule})
    rows = rows_of(size)
    drawn = drawn_from([*rows.values()], params)
    checked = 0
    for (name, scores), tokens in zip(rows.items(), drawn, strict=True):
        scores = scores / np.float32(params.temperature)
        mask, doubt = kept(scores, params)
        if doubt < ROUNDING and "equal" not in name:
            continue
        shares = plain_filters.probabilities(np.where(mask, scores, np.float32(-np.inf)))
        ends = np.cumsum(shares)
        found = np.array(tokens)
        assert mask[found].all(), name
        past = UNIFORMS - (ends[found] - shares[found])
        assert (past >= -ROUNDING).all(), name
        assert (past < shares[found] + ROUNDING).all(), name
        checked += 1
    assert checked > 1


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_row_gets_the_tokens_that_it_gets_alone(rule: dict[str, Any]) -> None:
    params = DecodingParams(do_sample=True, **rule)
    logits = np.stack([*rows_of(5000).values()])
    draws = [Draw(None, params, UNIFORMS[i : 2 * i + 1]) for i in range(len(logits))]
    together = draw_tokens(logits, draws)
    for place in range(len(logits)):
        alone = draw_tokens(logits[place : place + 1].copy(), draws[place : place + 1])
        assert alone.tokens == [together.tokens[place]]
        assert alone.normalisers == together.normalisers[place]
    assert draw_tokens(logits[::-1], draws[::-1]).tokens == together.tokens[::-1]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_numpy_draws_the_same(rule: dict[str, Any]) -> None:
    params = DecodingParams(do_sample=True, **rule)
    rows = rows_of(20_000)
    for scores, tokens in zip(rows.values(), drawn_from([*rows.values()], params), strict=True):
        others = sampling_candidates(scores, params).draw(UNIFORMS)
        # One more or less of 20,000 equals kept at the edge moves every later place a little.
        assert np.count_nonzero(others != tokens) <= UNIFORMS.size // 30


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_scores_that_are_not_finite_end_one_draw_alone(wrong: float) -> None:
    logits = np.zeros((2, 3000), dtype=np.float32)
    scores = logits[0].copy()
    scores[2999] = wrong
    params = DecodingParams(do_sample=True, top_k=0)
    draws = [Draw(scores, params, UNIFORMS[:3]), Draw(None, params, UNIFORMS[:3])]
    with np.errstate(invalid="ignore"):
        failed, drawn = draw_tokens(logits, draws).tokens
    assert isinstance(failed, Exception)
    assert [drawn] == draw_tokens(logits[1:], draws[1:]).tokens


def test_another_filter_is_left_to_numpy() -> None:
    params = DecodingParams(do_sample=True, top_k=50, typical_p=0.5)
    scores = rows_of(5000)["peaked"]
    [tokens] = drawn_from([scores], params)
    assert tokens == sampling_candidates(scores, params).draw(UNIFORMS).tolist()


@pytest.mark.parametrize("size", SIZES)
def test_rows_without_a_draw_get_no_tokens(size: int) -> None:
    logits = np.stack([*rows_of(size).values()])
    logits[1, size // 3] = np.nan
    logits[2, size - 1] = np.inf
    found = draw_tokens(logits, [None] * len(logits))
    assert found.tokens == [[]] * len(logits)
    np.testing.assert_array_equal(np.isnan(found.normalisers), [False, True, True, False, False, False])
