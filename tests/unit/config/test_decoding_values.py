"""Decoding's richer values, as the command line, files and options give them: mappings, lists, patterns."""

from pathlib import Path
from typing import Any

import pytest

from mindbatch.config.compose import compose_task
from mindbatch.config.model_schema import DecodingConfig
from mindbatch.io.errors import ConfigError
from mindbatch.tasks.generate.schema import GenerateConfig
from mindbatch.tasks.registry import TASKS


def decoding(folder: Path, *overrides: str, text: str = "", options: Path | None = None) -> DecodingConfig:
    file = folder / "run.yaml"
    file.write_text(text)
    given = [f"model.checkpoint_name_or_path={folder}", "prompts=Hi", *overrides]
    config = compose_task(TASKS["generate"], given, file, options).finish()
    assert isinstance(config, GenerateConfig)
    return config.decoding


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("logit_bias={50256: -100, 3: 2.5}", {"50256": -100, "3": 2.5}),
        ('logit_bias={"50256": -100}', {"50256": -100}),
        ("sequence_bias=[[[1,2],3],[[4],-1]]", [[[1, 2], 3], [[4], -1]]),
        ("bad_words_ids=[[1],[2,3]]", [[1], [2, 3]]),
        ("exponential_decay_length_penalty=[5,1.1]", [5, 1.1]),
        ("forced_eos_token_id=7", 7),
        ("json_schema={properties: {b: {}, a: {}}}", {"properties": {"b": {}, "a": {}}}),
        ('json_schema={"type": "string"}', {"type": "string"}),
        ("""json_schema='{"type": "string"}'""", '{"type": "string"}'),
        ("json_schema=true", True),
        (r'json_schema={"enum": ["\n", "\u6f22"]}', {"enum": ["\n", "漢"]}),
        (r'stop=["a\n", "\"", "\\n"]', ["a\n", '"', r"\n"]),
        (r'stop="\n\n"', "\n\n"),
        (r"stop=['\n', a]", [r"\n", "a"]),
        (r"regex=[0-9]+", "[0-9]+"),
        (r"regex=[abc]", "[abc]"),
        (r"regex={a}", "{a}"),
        (r"regex=\(a\)\d{2}", r"\(a\)\d{2}"),
        (r"regex=\(a\)", r"\(a\)"),
        (r'regex="\\bno\\b"', r"\\bno\\b"),
        (r"regex='\(a\)'", r"\(a\)"),
        (r"regex=yes|no", "yes|no"),
        (r"regex=a,b", "a,b"),
        (r"regex=42", "42"),
        (r"regex=[a$]", "[a$]"),
    ],
)
def test_on_the_command_line(override: str, value: Any, model_folder: Path) -> None:
    name = override.partition("=")[0]
    found = getattr(decoding(model_folder, f"decoding.{override}"), name)
    assert found == value
    if isinstance(found, dict):
        assert list(found) == list(value)


def test_early_stopping_may_be_a_word(model_folder: Path) -> None:
    beams = "decoding.num_beams=2"
    assert decoding(model_folder, beams, "decoding.early_stopping=never").early_stopping == "never"
    assert decoding(model_folder, beams, "decoding.early_stopping=true").early_stopping is True


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ('json_schema={"a": 1, "a": 2}', "cannot be read; check the brackets and quotes"),
        ('json_schema={"a": NaN}', "cannot be read; check the brackets and quotes"),
        ("json_schema=[1]", "found [1]; a JSON schema is an object"),
        ("logit_bias={x: 1}", "must be a mapping from token ids"),
        ("regex=[${model.type}]", "${ begins a reference"),
        ("early_stopping=soon", "must be true, false or never"),
    ],
)
def test_refused_on_the_command_line(override: str, said: str, model_folder: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        decoding(model_folder, f"decoding.{override}", "decoding.num_beams=2")
    [fault] = caught.value.faults
    assert said in fault


def test_in_a_file(model_folder: Path) -> None:
    text = "decoding: {logit_bias: {'5': 1}, json_schema: {type: object, $defs: {x: {}}}, stop: [a]}"
    found = decoding(model_folder, text=text)
    assert (found.logit_bias, found.stop) == ({"5": 1}, ["a"])
    assert found.json_schema == {"type": "object", "$defs": {"x": {}}}


def test_a_mapping_replaces_another(model_folder: Path) -> None:
    text = "decoding: {logit_bias: {'5': 1}, json_schema: {type: object}}"
    found = decoding(model_folder, "decoding.logit_bias={6: 2}", "decoding.json_schema={const: 1}", text=text)
    assert (found.logit_bias, found.json_schema) == ({"6": 2}, {"const": 1})


def test_in_an_option(model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "decoding").mkdir()
    (tmp_path / "decoding" / "mine.yaml").write_text("logit_bias: {'5': 1}\njson_schema: {type: object}\n")
    found = decoding(model_folder, "decoding=mine", options=tmp_path)
    assert (found.logit_bias, found.json_schema) == ({"5": 1}, {"type": "object"})


def test_they_come_back_from_what_is_saved(model_folder: Path, tmp_path: Path) -> None:
    given = [
        "decoding.logit_bias={50256: -100}",
        'decoding.json_schema={"b": {}, "a": {}}',
        r"decoding.stop=['\${']",
    ]
    model = f"model.checkpoint_name_or_path={model_folder}"
    config = compose_task(TASKS["generate"], [model, "prompts=Hi", *given]).finish()
    (tmp_path / "saved.yaml").write_text(config.unresolved_yaml)
    again = compose_task(TASKS["generate"], [], tmp_path / "saved.yaml").finish()
    assert isinstance(config, GenerateConfig)
    assert again == config
    assert list(config.decoding.json_schema) == ["b", "a"]
