"""Runs of strategies as an engine would return them."""

import pytest

from mindbatch.decoding import DecodingParams
from mindbatch.evaluation.comparison import Setup, StrategyRun
from strategy_results import completion, result


@pytest.fixture
def setup() -> Setup:
    return Setup("models/tiny", "2026-01-02T03:04:05+00:00", 8, False, 2)


@pytest.fixture
def runs() -> list[StrategyRun]:
    """Two prompts: greedy counts both on in the same way, sampling goes ways of its own."""
    greedy = [result(0, completion(0, [1, 2, 3, 4], -2.0)), result(1, completion(0, [1, 2, 3, 4], -4.0))]
    sampled = [result(0, completion(0, [5, 5, 5, 5, 5], -20.0)), result(1, completion(0, [6, 7, 8], -4.0))]
    return [
        StrategyRun("greedy", DecodingParams(max_new_tokens=5), greedy, [2.0]),
        StrategyRun("mine", DecodingParams(do_sample=True, top_p=0.9, max_new_tokens=5), sampled, [4.0]),
    ]
