"""DecodingParams: normalisation and the derived lengths."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from mindbatch.decoding import DecodingParams

SEQUENCES = (((1, 2), -3.0), ((4,), 1.5))


NORMALISED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "NumPy's numbers": (
        {"top_k": np.int64(4), "penalty_alpha": np.float32(0.5), "do_sample": np.False_},
        {"top_k": 4, "penalty_alpha": 0.5, "do_sample": False},
    ),
    "one forced end": ({"forced_eos_token_id": 5}, {"forced_eos_token_id": (5,)}),
    "forced ends": ({"forced_eos_token_id": [5, 6]}, {"forced_eos_token_id": (5, 6)}),
    "arrays": (
        {"suppress_tokens": np.array([3, 4]), "begin_suppress_tokens": 5},
        {"suppress_tokens": (3, 4), "begin_suppress_tokens": (5,)},
    ),
    "bad words": ({"bad_words_ids": [[1], np.array([2, 3])]}, {"bad_words_ids": ((1,), (2, 3))}),
    "a list of sequences": ({"sequence_bias": [[[1, 2], -3], [[4], 1.5]]}, {"sequence_bias": SEQUENCES}),
    "a mapping of sequences": ({"sequence_bias": {(1, 2): -3, (4,): 1.5}}, {"sequence_bias": SEQUENCES}),
    "a mapping of tokens": ({"logit_bias": {9: 1, 3: -100}}, {"logit_bias": ((3, -100.0), (9, 1.0))}),
    "tokens as JSON has them": ({"logit_bias": {"9": 1, "3": 2.0}}, {"logit_bias": ((3, 2.0), (9, 1.0))}),
    "a list of tokens": ({"logit_bias": [[9, 1]]}, {"logit_bias": ((9, 1.0),)}),
    "nothing": ({"logit_bias": {}, "sequence_bias": []}, {"logit_bias": (), "sequence_bias": ()}),
    "null as transformers has it": (
        dict.fromkeys(["bad_words_ids", "logit_bias", "sequence_bias", "suppress_tokens"]),
        dict.fromkeys(["bad_words_ids", "logit_bias", "sequence_bias", "suppress_tokens"], ()),
    ),
    "a decay": (
        {"exponential_decay_length_penalty": [5, 2]},
        {"exponential_decay_length_penalty": (5, 2.0)},
    ),
    "a schema": ({"json_schema": {"type": "null"}}, {"json_schema": '{"type":"null"}'}),
    "a schema as text": ({"json_schema": '{ "type": "null" }'}, {"json_schema": '{"type":"null"}'}),
}


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
        given = {name: value for each in NORMALISED.values() for name, value in each[0].items()}
        hash(DecodingParams(**given))

    @pytest.mark.parametrize(("given", "kept"), NORMALISED.values(), ids=NORMALISED)
    def test_one_form(self, given: dict[str, Any], kept: dict[str, Any]) -> None:
        params = DecodingParams(**given)
        for name, value in kept.items():
            assert repr(getattr(params, name)) == repr(value)  # 1 and 1.0 and True are equal
        again = {field.name: getattr(params, field.name) for field in dataclasses.fields(params)}
        assert DecodingParams(**again) == params


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


class TestTokenIds:
    def test_none_by_default(self) -> None:
        assert list(DecodingParams().token_ids()) == []
        assert list(DecodingParams(eos_token_id=()).token_ids()) == []

    def test_each_with_the_parameter_that_names_it(self) -> None:
        params = DecodingParams(
            eos_token_id=(1, 2),
            forced_bos_token_id=0,
            forced_eos_token_id=(3,),
            suppress_tokens=(4,),
            bad_words_ids=((5,), (6, 7)),
            sequence_bias=(((8, 9), 1.0),),
            logit_bias=((10, -1.0),),
        )
        named = {
            ("forced_bos_token_id", 0),
            ("eos_token_id", 1),
            ("eos_token_id", 2),
            ("forced_eos_token_id", 3),
            ("suppress_tokens", 4),
            ("bad_words_ids", 5),
            ("bad_words_ids", 6),
            ("bad_words_ids", 7),
            ("sequence_bias", 8),
            ("sequence_bias", 9),
            ("logit_bias", 10),
        }
        assert set(params.token_ids()) == named
        assert list(DecodingParams(begin_suppress_tokens=(11,)).token_ids()) == [
            ("begin_suppress_tokens", 11)
        ]
