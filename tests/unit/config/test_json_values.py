"""JSON, patterns, mappings and texts on the command line and in files, and saved configurations of them."""

import json
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import assume, example, given
from hypothesis import strategies as st

from mindbatch.config.model_schema import DecodingConfig
from mindbatch.config.saved import save_config
from mindbatch.config.settings import MANDATORY
from mindbatch.decoding import DecodingParams
from mindbatch.io.error_lines import text_override, texts_override
from mindbatch.io.errors import ConfigError
from task_configs import config_of

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
    config = config_of("generate", MODEL, f"prompts={written}")
    assert config.prompts == prompts
    saved = tmp_path / "saved.yaml"
    saved.write_text(config.unresolved_yaml, encoding="utf-8")
    again = config_of("generate", file=saved)
    assert again.prompts == prompts


def test_a_list_of_quoted_texts_is_not_left_to_hydras_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose time grows with the square of the list."""
    parse, parsed = OverridesParser.parse_override, list[str]()

    def parse_noting(self: OverridesParser, token: str) -> Any:
        parsed.append(token)
        return parse(self, token)

    monkeypatch.setattr(OverridesParser, "parse_override", parse_noting)
    config_of("generate", MODEL, "prompts=['a', 'b']")
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
    config = config_of("generate", MODEL, "chat=true", "prompts=[a]", override)
    assert [note for note in config.notes if "backslash" in note] == ([] if line is None else [line])


def test_sections_and_marks_of_hydra_mean_what_they_did() -> None:
    config = config_of("generate", MODEL, "+prompts=[a]", r'decoding={"stop": ["\n"]}')
    assert (config.prompts, config.decoding.stop) == (["a"], ["\n"])


@pytest.mark.parametrize(
    ("override", "fault"),
    [
        ('~prompts=["a"]', "without a value, for its default"),
        ('prompts@here=["a"]', "prompts is no group"),
        (r'prompts=["\ud800"]', "is not valid Unicode: lone surrogate"),
        ('promts=["a"]', "did you mean prompts"),
        ('prompts=["???"]', "stands for a value that must be given"),
    ],
)
def test_what_is_refused_stays_refused(override: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        config_of("generate", MODEL, override)


def test_a_schema_is_read_from_its_file_and_saved_as_it_is(tmp_path: Path) -> None:
    file, schema = tmp_path / "schema.json", '{"type": "string", "title": "${a}"}'
    file.write_text(schema)
    words = [MODEL, "prompts=[a]", f"decoding.json_schema={file}"]
    config = config_of("generate", *words)
    assert json.loads(str(config.decoding.json_schema)) == json.loads(schema)
    file.unlink()
    saved = tmp_path / "saved.yaml"
    saved.write_text(config.unresolved_yaml)
    again = config_of("generate", file=saved)
    assert again.decoding.json_schema == config.decoding.json_schema
    with pytest.raises(ConfigError, match=r"decoding.json_schema=.*schema.json: no such file"):
        config_of("generate", *words)


CHARACTERS = st.text(st.sampled_from("\\\"'${}[](),:=#;`*?-~ \n\r\ta1é\u2028\0"), max_size=12)


def composed(*overrides: str) -> tuple[object, object]:
    """The values of `system` and `prompts`."""
    config = config_of("generate", "model=tiny_gpt2", "chat=true", *overrides)
    return config.system, config.prompts  # type: ignore[attr-defined]


@given(CHARACTERS, CHARACTERS)
@example("${oc.env:HOME}", "${oc.env:HOME}\\")
@example("\\${x}", "\\\\${x} and a\\b")
@example("null", "true")
@example('"q"', "[1, 2]")
@example(" a ", "$(touch x); `y`")
@example("back\\", '\\"')
def test_a_text_arrives_to_the_letter(first: str, second: str) -> None:
    """All but `???`, which stands for a value that must be given, and is refused."""
    assume(MANDATORY not in (first, second))
    given_texts = (first, [first, second])
    assert composed(text_override("system", first), texts_override("prompts", [first, second])) == given_texts


def test_a_reference_would_else_be_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "opened")
    assert composed('system="${oc.env:SECRET}"', 'prompts=["x"]')[0] == "opened"


def decoding(folder: Path, *overrides: str, text: str = "", options: Path | None = None) -> DecodingConfig:
    file = folder / "run.yaml"
    file.write_text(text)
    given = [f"model.checkpoint_name_or_path={folder}", "prompts=Hi", *overrides]
    config = config_of("generate", *given, file=file, folder=options)
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
        ("regex=[${model.type}]", "must be text or null"),
        ("early_stopping=soon", "must be true, false or never"),
    ],
)
def test_refused_on_the_command_line(override: str, said: str, model_folder: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        decoding(model_folder, f"decoding.{override}", "decoding.num_beams=2")
    [fault] = caught.value.lines
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
    config = config_of("generate", model, "prompts=Hi", *given)
    (tmp_path / "saved.yaml").write_text(config.unresolved_yaml)
    again = config_of("generate", file=tmp_path / "saved.yaml")
    assert again == config
    assert list(config.decoding.json_schema) == ["b", "a"]


RANDOM_SEED = ["model=tiny_gpt2", "decoding.do_sample=true", "decoding.seed=random"]
HI = "prompts=hi"


def with_seed(task: str, *overrides: str, file: Path | None = None) -> Any:
    return config_of(task, *overrides, file=file)


def test_a_seed_is_drawn_and_told() -> None:
    first, second = (with_seed("generate", *RANDOM_SEED, HI) for _ in range(2))
    seed = first.decoding.seed
    assert 0 < seed < 1 << 32
    assert seed != second.decoding.seed
    assert first.notes == (f"decoding.seed={seed} was drawn; it gives the same again",)
    assert first.resolved_settings["decoding"]["seed"] == seed
    assert with_seed("generate", *RANDOM_SEED[:2], "decoding.seed=3", HI).notes == ()


def test_a_saved_configuration_draws_no_other(tmp_path: Path) -> None:
    first = with_seed("generate", *RANDOM_SEED, HI)
    save_config(first, tmp_path / "saved.yaml")
    again = with_seed("generate", file=tmp_path / "saved.yaml")
    assert (again.decoding, again.notes) == (first.decoding, ())


@pytest.mark.parametrize("listed", ["decoding=[top_p,temperature]", "decoding=[top_p]"])
def test_all_strategies_of_a_comparison_have_one(tmp_path: Path, listed: str) -> None:
    first = with_seed("compare", RANDOM_SEED[0], "decoding.seed=random", listed, HI)
    assert {each.seed for each in first.variants.values()} == {first.drawn["decoding.seed"]}
    save_config(first, tmp_path / "saved.yaml")
    assert with_seed("compare", file=tmp_path / "saved.yaml").variants == first.variants


def test_of_a_batch_its_record_tells(tmp_path: Path) -> None:
    config = with_seed(
        "batch", *RANDOM_SEED, "data.path=pyproject.toml", "data.format=text", f"output.dir={tmp_path}/a"
    )
    assert (config.drawn, config.notes) == ({"decoding.seed": config.decoding.seed}, ())


def test_parameters_draw_one_when_they_are_made() -> None:
    first, second = (DecodingParams(seed="random") for _ in range(2))  # type: ignore[arg-type]
    assert isinstance(first.seed, int)
    assert first.seed != second.seed
    assert DecodingParams(seed=first.seed) == first


def test_a_variable_of_the_environment_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEED", "18446744073709551615")
    config = with_seed("generate", RANDOM_SEED[0], "decoding.seed=${oc.env:SEED}", HI)
    assert DecodingParams(**vars(config.decoding)).seed == (1 << 64) - 1
