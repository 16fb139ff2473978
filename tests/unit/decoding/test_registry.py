"""Which strategy parameters ask for."""

from typing import Any

import pytest

from mindbatch.config.model_task import widest
from mindbatch.decoding import DecodingParams
from mindbatch.decoding.registry import strategies, strategy_for, strategy_name

NAMES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampling": {"do_sample": True},
    "beam_search": {"num_beams": 2},
    "beam_sampling": {"num_beams": 2, "do_sample": True},
    "group_beam_search": {"num_beams": 2, "num_beam_groups": 2, "diversity_penalty": 1},
    "contrastive": {"penalty_alpha": 0.1, "top_k": 2},
    "sample_and_rank": {"best_of": 1, "do_sample": True},
    "speculative": {"num_assistant_tokens": 1, "do_sample": True},
    "embedding": {"pooling": "mean"},
}


class TestStrategyName:
    @pytest.mark.parametrize(("name", "values"), NAMES.items(), ids=NAMES)
    def test_each(self, name: str, values: dict[str, Any]) -> None:
        assert strategy_name(DecodingParams(**values)) == name

    def test_others(self) -> None:
        assert strategy_name(DecodingParams(prompt_lookup_num_tokens=1)) == "speculative"
        assert strategy_name(DecodingParams(do_sample=True, temperature=0)) == "greedy"
        assert strategy_name(DecodingParams(do_sample=True, temperature=0, num_beams=2)) == "beam_search"


WIDE: dict[str, dict[str, Any]] = {
    "sampling": {"do_sample": True, "num_return_sequences": 7},
    "beam_search": {"num_beams": 9, "num_return_sequences": 3},
    "beam_sampling": {"num_beams": 9, "do_sample": True},
    "group_beam_search": {"num_beams": 8, "num_beam_groups": 4, "diversity_penalty": 1},
    "contrastive": {"penalty_alpha": 0.1, "top_k": 11},
    "sample_and_rank": {"best_of": 6, "num_return_sequences": 2, "do_sample": True},
    "speculative": {"num_assistant_tokens": 5, "num_return_sequences": 3, "do_sample": True},
}


@pytest.mark.parametrize("values", WIDE.values(), ids=WIDE)
def test_no_strategy_is_wider_than_its_parameters(values: dict[str, Any]) -> None:
    params = DecodingParams(**values)
    assert 1 < strategy_for(params).width(params) <= widest(params)


def test_the_width_of_every_strategy_is_looked_at() -> None:
    one_wide = {"embedding": {"pooling": "mean"}}
    asked = {type(strategy_for(DecodingParams(**values))) for values in (WIDE | one_wide).values()}
    assert asked == {type(strategy) for strategy in strategies()}
