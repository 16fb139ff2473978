"""What is taken from a model's generation_config.json, and what is left out and said."""

import json
from pathlib import Path
from typing import Any

import pytest

from mindbatch.decoding import DecodingParams
from mindbatch.decoding.model_defaults import model_defaults, sampling_advice
from mindbatch.io.errors import ConfigError

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
    assert caught.value.faults == (f"{path}: {fault}",)
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
