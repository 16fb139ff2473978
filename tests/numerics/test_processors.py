"""Processed scores and filtered distributions equal those of transformers; draws follow them."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from processor_cases import EOS_TOKEN_IDS, Case, allowed_tokens

from goodness_of_fit import assert_distributed
from mindbatch.decoding import DecodingParams
from mindbatch.decoding.draws import row_hash
from mindbatch.decoding.filters import sampling_candidates
from mindbatch.decoding.processors import adjust
from mindbatch.decoding.registry import strategy_for
from mindbatch.decoding.row import Row
from mindbatch.decoding.softmax import softmax
from mindbatch.decoding.strategy import GroupView

FIXTURES = Path(__file__).parent / "fixtures"
CASES = ("small", "peaked", "flat", "tied")


def load_arrays(name: str) -> dict[str, NDArray[Any]]:
    with np.load(FIXTURES / name) as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def recorded() -> dict[str, NDArray[Any]]:
    return load_arrays("processors.npz")


def ours(
    logits: NDArray[np.float32], token_ids: NDArray[np.int64], setting: dict[str, Any], meta: dict[str, Any]
) -> NDArray[np.float32]:
    """Processed scores [V] of one row, minus infinity where a token is filtered out."""
    split = meta["prompt_length"]
    params = DecodingParams(do_sample=True, **setting)
    prompt, output = token_ids[:split].tolist(), token_ids[split:].tolist()
    row = Row(params, prompt, output, tuple(meta["eos_token_ids"]), row_hash=0)
    return sampling_candidates(adjust(logits, row), params).dense(logits.size)


def assert_same_distribution(
    scores: NDArray[np.float32], expected: NDArray[np.float32], case: str, setting: dict[str, Any]
) -> None:
    if case == "tied" and "top_p" in setting:
        # Which of several equal scores at the nucleus' edge stay is up to PyTorch's unstable sort.
        scores, expected = np.sort(scores), np.sort(expected)
    np.testing.assert_array_equal(np.isfinite(scores), np.isfinite(expected))
    np.testing.assert_allclose(scores, expected, rtol=1e-6)
    np.testing.assert_allclose(softmax(scores), softmax(expected), atol=1e-7)


@pytest.mark.parametrize("case", CASES)
def test_equals_the_fixture_of_transformers(case: str, recorded: dict[str, NDArray[Any]]) -> None:
    meta = json.loads(str(recorded["meta"]))
    for number, setting in enumerate(meta["settings"]):
        rows = zip(recorded[f"{case}.logits"], recorded[f"{case}.token_ids"], strict=True)
        for expected, (logits, token_ids) in zip(recorded[f"{case}.{number}"], rows, strict=True):
            assert_same_distribution(ours(logits, token_ids, setting, meta), expected, case, setting)


def assert_case_equals(case: Case, scores: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    setting = dict(case.setting)
    if modulus := setting.pop("modulus", None):
        setting["prefix_allowed_tokens_fn"] = lambda key, token_ids: allowed_tokens(modulus, token_ids)
    row = Row(DecodingParams(**setting), case.prompt, case.output, EOS_TOKEN_IDS, row_hash=0)
    np.testing.assert_allclose(adjust(scores, row), expected, rtol=1e-6, atol=1e-6, err_msg=str(case))


def test_each_processor_alone_and_in_company_equals_the_fixture(recorded: dict[str, NDArray[Any]]) -> None:
    cases = [Case(**case) for case in json.loads(str(recorded["cases"]))]
    assert len(cases) == 488
    for case, expected in zip(cases, recorded["case_results"], strict=True):
        assert_case_equals(case, recorded["case_scores"][case.scores], expected)


def test_samples_follow_the_distribution() -> None:
    """The whole way: one request with 20,000 samples."""
    params = DecodingParams(do_sample=True, num_return_sequences=20_000, top_p=0.9, seed=3)
    logits = np.random.default_rng(1).standard_normal((1, 25)).astype(np.float32) * 2
    row = Row(params, [1], [], (0,), row_hash("a"))
    [decision] = strategy_for(params).advance([GroupView([row])], logits)
    assert [branch.sample_index for branch in decision.branches] == list(range(20_000))
    tokens = Counter(branch.choices[0].token_id for branch in decision.branches)
    exact = softmax(sampling_candidates(logits[0], params).dense(25).astype(np.float64))
    assert_distributed(tokens, dict(enumerate(exact.tolist())))


def check_kept(
    logits: NDArray[np.float32], masks: NDArray[np.bool_], setting: dict[str, Any], ends: int
) -> None:
    setting = dict(setting)
    ends = len(setting.get("eos_token_id", range(ends)))
    least = ends + 1 if setting.pop("num_beams", 1) > 1 else 1
    params = DecodingParams(do_sample=True, **setting)
    for row, expected in zip(logits, masks, strict=True):
        left = sampling_candidates(row, params, least).dense(row.size)
        np.testing.assert_array_equal(np.isfinite(left), expected, err_msg=str(setting))
        np.testing.assert_allclose(left[expected], row[expected] / params.temperature, rtol=1e-6)


@pytest.mark.parametrize("file", ["filters.npz", "filters_top_h.npz"])
@pytest.mark.parametrize("case", ["small", "peaked", "flat"])
def test_filters_keep_the_tokens_that_those_of_transformers_keep(case: str, file: str) -> None:
    logits, fixture = load_arrays("filters.npz")[f"{case}.logits"], load_arrays(file)
    meta = json.loads(str(fixture["meta"]))
    for number, setting in enumerate(meta["settings"]):
        masks = np.unpackbits(fixture[f"{case}.{number}"], axis=1, count=logits.shape[1]).astype(np.bool_)
        check_kept(logits, masks, setting, meta["num_end_tokens"])
