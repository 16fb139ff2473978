"""DecodingParams: one form of each value, lengths, strategies, and what a model's own configuration gives."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import decoding_table
from mindbatch.config.model_task import widest
from mindbatch.decoding import DecodingParams
from mindbatch.decoding.model_defaults import model_defaults, sampling_advice
from mindbatch.decoding.registry import strategies, strategy_for
from mindbatch.decoding.sampling import SamplingStrategy
from mindbatch.io.errors import ConfigError

SEQUENCES = (((1, 2), -3.0), ((4,), 1.5))


NORMALISED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "NumPy's numbers": (
        {"top_k": np.int64(4), "penalty_alpha": np.float32(0.5), "do_sample": np.False_},
        {"top_k": 4, "penalty_alpha": 0.5, "do_sample": False},
    ),
    "one text and one token": (
        {"stop": "\n\n", "eos_token_id": 2},
        {"stop": ("\n\n",), "eos_token_id": (2,)},
    ),
    "lists": (
        {"stop": ["a", "b"], "eos_token_id": [1, np.int64(2)]},
        {"stop": ("a", "b"), "eos_token_id": (1, 2)},
    ),
    "no end": ({"eos_token_id": ()}, {"eos_token_id": ()}),
    "the model's own": ({}, {"eos_token_id": None}),
    "a whole number": ({"do_sample": True, "temperature": 2}, {"temperature": 2.0}),
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
    @pytest.mark.parametrize(("given", "kept"), NORMALISED.values(), ids=NORMALISED)
    def test_one_form(self, given: dict[str, Any], kept: dict[str, Any]) -> None:
        params = DecodingParams(**given)
        for name, value in kept.items():
            assert repr(getattr(params, name)) == repr(value)  # 1 and 1.0 and True are equal
        again = {field.name: getattr(params, field.name) for field in dataclasses.fields(params)}
        assert DecodingParams(**again) == params
        assert hash(DecodingParams(**again)) == hash(params)


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


ASKED: list[tuple[str, dict[str, Any]]] = [
    ("SamplingStrategy", {}),
    ("SamplingStrategy", {"do_sample": True}),
    ("SamplingStrategy", {"do_sample": True, "temperature": 0}),
    ("BeamSearch", {"num_beams": 2}),
    ("BeamSearch", {"do_sample": True, "temperature": 0, "num_beams": 2}),
    ("BeamSampling", {"num_beams": 2, "do_sample": True}),
    ("GroupBeamSearch", {"num_beams": 2, "num_beam_groups": 2, "diversity_penalty": 1}),
    ("ContrastiveSearch", {"penalty_alpha": 0.1, "top_k": 2}),
    ("SampleAndRank", {"best_of": 1, "do_sample": True}),
    ("SpeculativeStrategy", {"num_assistant_tokens": 1, "do_sample": True}),
    ("SpeculativeStrategy", {"prompt_lookup_num_tokens": 1}),
    ("Embedding", {"pooling": "mean"}),
]


@pytest.mark.parametrize(("name", "values"), ASKED)
def test_which_strategy_parameters_ask_for(name: str, values: dict[str, Any]) -> None:
    assert type(strategy_for(DecodingParams(**values))).__name__ == name


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
    assert asked == {SamplingStrategy, *map(type, strategies().values())}


def test_the_page_has_the_table() -> None:
    page = decoding_table.PAGE.read_text()
    assert decoding_table.with_table(page) == page, "run docs/generator/decoding_table.py"


SAMPLING = {"do_sample": True, "temperature": 0.6, "top_p": 0.9}


def folder(tmp_path: Path, content: Any) -> Path:
    (tmp_path / "generation_config.json").write_text(json.dumps(content))
    return tmp_path


@pytest.mark.parametrize(
    ("content", "given", "taken", "left_out"),
    [
        (SAMPLING | {"transformers_version": "4.57", "eos_token_id": [2, 3]}, {}, SAMPLING, []),
        (SAMPLING | {"top_k": None}, {"top_p": 0.5}, {"do_sample": True, "temperature": 0.6}, []),
        (SAMPLING, {"do_sample": False}, {}, ["temperature", "top_p"]),
        ({"temperature": 0.9, "max_length": 4096}, {}, {"max_length": 4096}, ["temperature"]),
        (SAMPLING | {"top_k": -1, "num_beams": "2"}, {}, SAMPLING, ["num_beams", "top_k"]),
        (SAMPLING | {"penalty_alpha": 0.5}, {}, SAMPLING, ["penalty_alpha"]),
        (
            SAMPLING | {"guidance_scale": 2, "regex": "(a+)+", "seed": 3},
            {},
            SAMPLING,
            ["guidance", "reg", "seed"],
        ),
        ({"early_stopping": "${oc.env:HOME}", "bad_words_ids": [["${x}"]]}, {}, {}, []),
        ({"max_new_tokens": 9}, {"top_p": 7.0}, {"max_new_tokens": 9}, []),
    ],
)
def test_what_is_taken(
    tmp_path: Path, content: Any, given: dict[str, Any], taken: dict[str, Any], left_out: list[str]
) -> None:
    found, notes = model_defaults(folder(tmp_path, content), given, DecodingParams)
    assert found == taken
    assert len(notes) == len(left_out)
    assert all(any(name in note for note in notes) for name in left_out)


def test_parameters_from_a_folder(tmp_path: Path) -> None:
    made = DecodingParams.from_model(folder(tmp_path, SAMPLING), temperature=0.2, seed=3)
    assert made == DecodingParams(do_sample=True, temperature=0.2, top_p=0.9, seed=3)
    with pytest.raises(ConfigError, match="top_p=7"):
        DecodingParams.from_model(tmp_path, top_p=7.0)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "not valid JSON: Expecting value at character 0"),
        ("[1]", "must be a JSON object"),
        ("{" * 100_000, "not valid JSON: Expecting property name enclosed in double quotes at character 1"),
        ('{"a": ' * 100_000, "JSON is nested too deeply; at most 32 levels are allowed"),
        ('{"a": ' + " " * (1 << 21) + "1}", "cannot be read (2097160 bytes; at most 1048576 are allowed)"),
        ('{"top_p": 0.5, "top_p": 0.9}', "the key 'top_p' appears twice in one object"),
        ('{"top_p": NaN}', "NaN is no number of JSON"),
        ('{"temperature": 1e999}', "the number '1e999' is too large for 64 bits"),
        ('{"top_k": ' + "9" * 101 + "}", "a number of the JSON has 101 digits; at most 100 are allowed"),
        ("GGUF", "a GGUF file"),
        ("[" * 1_000_001, "1000001 lists, objects and commas; at most 1000000 are allowed"),
    ],
)
def test_a_file_that_is_not_in_order(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "generation_config.json"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        model_defaults(tmp_path, {}, DecodingParams)
    assert caught.value.lines == (f"{path}: {fault}",)
    assert sampling_advice(tmp_path, {}, DecodingParams) is None


def test_a_folder_without_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not there"):
        DecodingParams.from_model(tmp_path)


def test_advice_where_a_sampling_model_runs_greedily(tmp_path: Path) -> None:
    model = folder(tmp_path, SAMPLING)
    advice = sampling_advice(model, {}, DecodingParams)
    assert advice is not None
    assert "do_sample=true, temperature=0.6, top_p=0.9" in advice
    assert sampling_advice(model, {"num_beams": 2}, DecodingParams) is None
    assert sampling_advice(model, {"do_sample": True}, DecodingParams) is None
    assert sampling_advice(folder(tmp_path, {"temperature": 0.9}), {}, DecodingParams) is None
