"""Which strategy parameters ask for."""

from typing import Any

import pytest

from mindbatch.decoding import DecodingParams
from mindbatch.decoding.registry import strategy_name

NAMES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampling": {"do_sample": True},
    "beam_search": {"num_beams": 2},
    "beam_sampling": {"num_beams": 2, "do_sample": True},
    "group_beam_search": {"num_beams": 2, "num_beam_groups": 2, "diversity_penalty": 1},
    "contrastive": {"penalty_alpha": 0.1, "top_k": 2},
    "sample_and_rank": {"best_of": 1, "do_sample": True},
    "speculative": {"num_assistant_tokens": 1, "do_sample": True},
}


class TestStrategyName:
    @pytest.mark.parametrize(("name", "values"), NAMES.items(), ids=NAMES)
    def test_each(self, name: str, values: dict[str, Any]) -> None:
        assert strategy_name(DecodingParams(**values)) == name

    def test_others(self) -> None:
        assert strategy_name(DecodingParams(prompt_lookup_num_tokens=1)) == "speculative"
        assert strategy_name(DecodingParams(do_sample=True, temperature=0)) == "greedy"
        assert strategy_name(DecodingParams(do_sample=True, temperature=0, num_beams=2)) == "beam_search"
