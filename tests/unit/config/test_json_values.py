"""What looks like JSON on the command line is JSON, and a saved configuration gives it back."""

import json
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from mindbatch.config.compose import compose_task
from mindbatch.io.errors import ConfigError
from mindbatch.tasks.generate.schema import GenerateConfig
from mindbatch.tasks.registry import TASKS

MODEL = "model=tiny_gpt2"


@pytest.mark.parametrize(
    ("written", "prompts"),
    [
        (r'["Q\nA"]', ["Q\nA"]),
        (r'["\u6f22", "\ud83d\ude00"]', ["漢", "😀"]),
        (r'"Q\nA"', "Q\nA"),
        (r' [ "say \"a\"", "a\\nb" ]', ['say "a"', r"a\nb"]),
        (r'["\u0000\u001b\u0085\u2028\ufeff\t\r\n\u007f"]', ["\0\x1b\x85\u2028\ufeff\t\r\n\x7f"]),
        ("[[464, 3139], [1]]", [[464, 3139], [1]]),
        ('["1e3", "null", "12:30", "~", "- a", "${model.dtype}", ""]',
         ["1e3", "null", "12:30", "~", "- a", "auto", ""]),
        (r'["\\${model.dtype}"]', ["${model.dtype}"]),
        ("[One two, 'three']", ["One two", "three"]),  # not JSON: Hydra's grammar
        (r"['Q\nA']", [r"Q\nA"]),
        ("[ '1,2' , ' [x] ','你好', '1e3','']", ["1,2", " [x] ", "你好", "1e3", ""]),
        ("你好，世界", "你好，世界"),  # not in Hydra's grammar either
        (" Größe und Maß ", "Größe und Maß"),
    ],
)  # fmt: skip
def test_prompts(written: str, prompts: Any, tmp_path: Path) -> None:
    config = compose_task(TASKS["generate"], [MODEL, f"prompts={written}"]).finish()
    assert isinstance(config, GenerateConfig)
    assert config.prompts == prompts
    saved = tmp_path / "saved.yaml"
    saved.write_text(config.unresolved_yaml, encoding="utf-8")
    again = compose_task(TASKS["generate"], [], saved).finish()
    assert isinstance(again, GenerateConfig)
    assert again.prompts == prompts


def test_a_list_of_quoted_texts_is_not_left_to_hydras_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose time grows with the square of the list."""
    parse, parsed = OverridesParser.parse_override, list[str]()

    def parse_noting(self: OverridesParser, token: str) -> Any:
        parsed.append(token)
        return parse(self, token)

    monkeypatch.setattr(OverridesParser, "parse_override", parse_noting)
    compose_task(TASKS["generate"], [MODEL, "prompts=['a', 'b']"]).finish()
    assert MODEL in parsed
    assert not [token for token in parsed if token.startswith("prompts")]


@pytest.mark.parametrize(
    ("override", "line"),
    [
        (r"decoding.stop=\nQ:",
         r"""decoding.stop: \n is a backslash and n there; a line break is decoding.stop='["...\n..."]'"""),
        (r"system=Be brief.\n", r"system: \n is a backslash and n there; a line break is system=$'...\n...'"),
        (r"prompts=['a\t']", """prompts: \\t is a backslash and t there; a tab is prompts='["...\\t..."]'"""),
        (r'decoding.stop=["\n"]', None),
        ("system=Be brief.\n", None),
        (r"system=C:\new", None),
    ],
)  # fmt: skip
def test_a_backslash_that_was_meant_as_a_line_break_is_told(override: str, line: str | None) -> None:
    config = compose_task(TASKS["generate"], [MODEL, "chat=true", "prompts=[a]", override]).finish()
    assert [note for note in config.notes if "backslash" in note] == ([] if line is None else [line])


def test_sections_and_marks_of_hydra_mean_what_they_did() -> None:
    config = compose_task(TASKS["generate"], [MODEL, "+prompts=[a]", r'decoding={"stop": ["\n"]}']).finish()
    assert isinstance(config, GenerateConfig)
    assert (config.prompts, config.decoding.stop) == (["a"], ["\n"])


@pytest.mark.parametrize(
    ("override", "fault"),
    [
        ('~prompts=["a"]', "without a value, for its default"),
        ('prompts@here=["a"]', "prompts is no group"),
        (r'prompts=["\ud800"]', "is not valid Unicode: lone surrogate"),
        ('promts=["a"]', "did you mean prompts"),
    ],
)
def test_what_is_refused_stays_refused(override: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        compose_task(TASKS["generate"], [MODEL, override]).finish()


def test_a_schema_is_read_from_its_file_and_saved_as_it_is(tmp_path: Path) -> None:
    file, schema = tmp_path / "schema.json", '{"type": "string", "title": "${a}"}'
    file.write_text(schema)
    words = [MODEL, "prompts=[a]", f"decoding.json_schema={file}"]
    config = compose_task(TASKS["generate"], words).finish()
    assert isinstance(config, GenerateConfig)
    assert json.loads(str(config.decoding.json_schema)) == json.loads(schema)
    file.unlink()
    saved = tmp_path / "saved.yaml"
    saved.write_text(config.unresolved_yaml)
    again = compose_task(TASKS["generate"], [], saved).finish()
    assert isinstance(again, GenerateConfig)
    assert again.decoding.json_schema == config.decoding.json_schema
    with pytest.raises(ConfigError, match=r"decoding.json_schema=.*schema.json: no such file"):
        compose_task(TASKS["generate"], words).finish()
