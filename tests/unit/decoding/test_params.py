"""DecodingParams: normalisation, every range, faults named together, and the derived lengths."""

from typing import Any

import numpy as np
import pytest

from mindbatch.decoding import DecodingParams
from mindbatch.errors import ConfigError


def faults(**values: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        DecodingParams(**values)
    return caught.value.faults


class TestNormalisation:
    def test_single_stop_and_eos_become_tuples(self) -> None:
        values: dict[str, Any] = {"stop": "\n\n", "eos_token_id": 2}
        params = DecodingParams(**values)
        assert params.stop == ("\n\n",)
        assert params.eos_token_id == (2,)

    def test_lists_become_tuples(self) -> None:
        values: dict[str, Any] = {"stop": ["a", "b"], "eos_token_id": [1, np.int64(2)]}
        params = DecodingParams(**values)
        assert params.stop == ("a", "b")
        assert params.eos_token_id == (1, 2)
        assert type(params.eos_token_id[1]) is int

    def test_no_eos_differs_from_the_models_own(self) -> None:
        assert DecodingParams(eos_token_id=()).eos_token_id == ()
        assert DecodingParams().eos_token_id is None

    def test_whole_numbers_serve_as_real_ones(self) -> None:
        temperature = DecodingParams(do_sample=True, temperature=2).temperature
        assert temperature == 2.0
        assert type(temperature) is float

    def test_is_hashable_after_normalisation(self) -> None:
        values: dict[str, Any] = {"stop": ["a"], "eos_token_id": [1]}
        assert hash(DecodingParams(**values)) == hash(DecodingParams(stop=("a",), eos_token_id=(1,)))


class TestRanges:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("do_sample", 1),
            ("do_sample", "true"),
            ("temperature", -0.1),
            ("temperature", float("nan")),
            ("temperature", float("inf")),
            ("temperature", 1e-40),
            ("temperature", "0.5"),
            ("temperature", True),
            ("top_k", -1),
            ("top_k", 5.0),
            ("top_k", True),
            ("top_p", 0.0),
            ("top_p", 1.5),
            ("top_p", float("nan")),
            ("top_p", 10**400),
            ("min_p", -0.1),
            ("min_p", 1.1),
            ("repetition_penalty", 0.0),
            ("repetition_penalty", -1.0),
            ("max_length", 0),
            ("max_new_tokens", 0),
            ("min_length", -1),
            ("min_length", None),
            ("min_new_tokens", -1),
            ("num_return_sequences", 0),
            ("seed", -1),
            ("seed", 2**64),
            ("stop", ""),
            ("stop", ["a", ""]),
            ("stop", [1]),
            ("stop", None),
            ("eos_token_id", -1),
            ("eos_token_id", [1, -2]),
            ("eos_token_id", [True]),
            ("eos_token_id", "2"),
            ("logprobs", -1),
            ("logprobs", 101),
            ("prompt_logprobs", 1.0),
            ("skip_special_tokens", None),
        ],
    )
    def test_refused(self, name: str, value: object) -> None:
        [fault] = faults(**{"do_sample": True, name: value})
        assert fault.startswith(f"decoding.{name}=")
        assert ": must be " in fault

    @pytest.mark.parametrize(
        "values",
        [
            {"temperature": 0},
            {"temperature": 0.0, "do_sample": True, "top_p": 0.9},
            {"do_sample": True, "top_p": 1, "min_p": 1, "top_k": 10**9, "seed": 2**64 - 1},
            {"logprobs": 0, "prompt_logprobs": 100},
            {"do_sample": True, "num_return_sequences": 3},
        ],
    )
    def test_accepted(self, values: dict[str, Any]) -> None:
        DecodingParams(**values)

    def test_the_line_reads_as_promised(self) -> None:
        assert faults(do_sample=True, top_p=1.5) == ("decoding.top_p=1.5: must be above 0 and at most 1",)

    def test_a_long_value_is_shortened(self) -> None:
        [fault] = faults(max_length="x" * 10_000)
        assert len(fault) < 200


class TestCombinations:
    @pytest.mark.parametrize(
        ("name", "value"), [("temperature", 0.7), ("top_k", 5), ("top_p", 0.9), ("min_p", 0.1)]
    )
    def test_sampling_parameters_without_sampling(self, name: str, value: float) -> None:
        [fault] = faults(**{name: value})
        expected = "has no effect with decoding.do_sample=false; set do_sample=true or remove it"
        assert fault == f"decoding.{name}={value} {expected}"

    @pytest.mark.parametrize("values", [{}, {"do_sample": True, "temperature": 0}])
    def test_several_greedy_outputs(self, values: dict[str, Any]) -> None:
        [fault] = faults(num_return_sequences=4, **values)
        assert fault.startswith("decoding.num_return_sequences=4 cannot go with decoding.")

    @pytest.mark.parametrize(
        "values",
        [
            {"min_length": 5, "max_length": 4},
            {"min_new_tokens": 5, "max_new_tokens": 4},
            {"min_new_tokens": 5, "max_length": 4},
        ],
    )
    def test_crossed_lengths(self, values: dict[str, Any]) -> None:
        low, high = values
        assert faults(**values) == (f"decoding.{low}=5 is above decoding.{high}=4; must be at most that",)

    def test_every_fault_is_named_at_once(self) -> None:
        named = [
            fault.split("=")[0] for fault in faults(top_p=1.5, seed=-1, top_k=3, min_length=9, max_length=1)
        ]
        assert named == ["decoding.top_p", "decoding.seed", "decoding.top_k", "decoding.min_length"]


class TestDerived:
    def test_greedy(self) -> None:
        assert DecodingParams().greedy
        assert DecodingParams(do_sample=True, temperature=0).greedy
        assert not DecodingParams(do_sample=True).greedy

    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            ({}, 138),
            ({"max_length": 50}, 50),
            ({"max_new_tokens": 50}, 60),
            ({"max_length": 50, "max_new_tokens": 50}, 50),
            ({"max_length": 100, "max_new_tokens": 50}, 60),
            ({"max_new_tokens": 5000}, 1024),
            ({"max_length": 5000}, 1024),
        ],
    )
    def test_max_total_tokens(self, values: dict[str, Any], expected: int) -> None:
        assert DecodingParams(**values).max_total_tokens(prompt_length=10, seq_length=1024) == expected

    def test_min_total_tokens(self) -> None:
        assert DecodingParams(min_length=15, min_new_tokens=3).min_total_tokens(10) == 15
        assert DecodingParams(min_length=15, min_new_tokens=8).min_total_tokens(10) == 18
        assert DecodingParams().min_total_tokens(10) == 10
