"""The sampling filters keep the tokens that transformers' keep, and temperature divides what they see."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mindbatch.decoding import DecodingParams
from mindbatch.decoding.filters import sampling_candidates

FIXTURES = Path(__file__).parent / "fixtures"
CASES = ("small", "peaked", "flat")


def load(name: str) -> dict[str, NDArray[Any]]:
    with np.load(FIXTURES / name) as arrays:
        return dict(arrays)


def check(logits: NDArray[np.float32], masks: NDArray[np.bool_], setting: dict[str, Any], ends: int) -> None:
    setting = dict(setting)
    ends = len(setting.get("eos_token_id", range(ends)))
    least = ends + 1 if setting.pop("num_beams", 1) > 1 else 1
    params = DecodingParams(do_sample=True, **setting)
    for row, expected in zip(logits, masks, strict=True):
        left = sampling_candidates(row, params, least).dense(row.size)
        np.testing.assert_array_equal(np.isfinite(left), expected, err_msg=str(setting))
        np.testing.assert_allclose(left[expected], row[expected] / params.temperature, rtol=1e-6)


@pytest.mark.parametrize("file", ["filters.npz", "filters_top_h.npz"])
@pytest.mark.parametrize("case", CASES)
def test_equals_the_fixture_of_transformers(case: str, file: str) -> None:
    logits, fixture = load("filters.npz")[f"{case}.logits"], load(file)
    meta = json.loads(str(fixture["meta"]))
    for number, setting in enumerate(meta["settings"]):
        masks = np.unpackbits(fixture[f"{case}.{number}"], axis=1, count=logits.shape[1]).astype(np.bool_)
        check(logits, masks, setting, meta["num_end_tokens"])


def test_equals_transformers_live() -> None:
    torch = pytest.importorskip("torch")
    tool = pytest.importorskip("make_filter_fixtures")
    assert torch
    for seed in range(10):
        for logits in tool.random_logits(seed).values():
            for setting in tool.SETTINGS:
                check(logits, tool.kept(setting, logits), setting, len(tool.EOS_TOKEN_IDS))
