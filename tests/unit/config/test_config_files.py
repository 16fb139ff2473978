"""--config and --config-dir: strict YAML, precedence, group options of the user's own, and their checks."""

import os
from pathlib import Path

import pytest

from mindbatch.config.compose import compose_task
from mindbatch.config.yaml_file import LARGEST_FILE, read_mapping, read_with_lines
from mindbatch.io.errors import ConfigError
from mindbatch.tasks.generate.schema import GenerateConfig
from mindbatch.tasks.registry import TASKS
from task_configs import config_of


@pytest.fixture
def options(tmp_path: Path) -> Path:
    """A --config-dir with an empty model/ folder; the odd characters must reach Hydra unharmed."""
    folder = tmp_path / "my 'own\" \\x${y} options"
    (folder / "model").mkdir(parents=True)
    return folder


def compose(
    overrides: list[str], file_text: str = "", folder: Path | None = None, *, tmp_path: Path
) -> GenerateConfig:
    file = tmp_path / "run.yaml"
    file.write_text(file_text)
    model = tmp_path / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text("{}")
    given = ["prompts=Hi", *overrides]
    if not any("model" in override for override in overrides) and "model" not in file_text:
        given.append(f"model.checkpoint_name_or_path={model}")
    return config_of("generate", *given, file=file, folder=folder)


def faults(
    overrides: list[str], file_text: str = "", folder: Path | None = None, *, tmp_path: Path
) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        compose(overrides, file_text, folder, tmp_path=tmp_path)
    return [line.replace(f"{tmp_path}/", "") for line in caught.value.lines]


def test_the_command_line_goes_before_the_file_and_the_file_before_the_task(tmp_path: Path) -> None:
    text = "decoding: {seed: 5, max_length: 9}\nruntime.num_threads: 2\n"
    config = compose(["decoding.seed=7"], text, tmp_path=tmp_path)
    assert (config.decoding.seed, config.decoding.max_length, config.decoding.top_k) == (7, 9, 0)
    assert config.runtime.num_threads == 2


def test_a_file_can_choose_options(tmp_path: Path) -> None:
    assert compose([], "decoding: top_p\n", tmp_path=tmp_path).decoding.top_p == 0.9


def test_an_option_on_the_command_line_goes_before_the_values_of_the_file(tmp_path: Path) -> None:
    text = "decoding: {do_sample: true, top_p: 0.5, seed: 3}\n"
    decoding = compose(["decoding=top_p"], text, tmp_path=tmp_path).decoding
    assert (decoding.top_p, decoding.seed) == (0.9, 3)
    decoding = compose(["decoding.top_p=0.4", "decoding=top_p"], text, tmp_path=tmp_path).decoding
    assert decoding.top_p == 0.4


def test_a_mapping_on_the_command_line_sets_its_keys(tmp_path: Path) -> None:
    assert compose(["decoding={seed: 4, top_k: 0}"], tmp_path=tmp_path).decoding.seed == 4


def test_faults_of_a_file_name_the_file(tmp_path: Path) -> None:
    text = (
        "decoding: {top_pp: 1, top_k: x}\nrunntime: {a: 1}\nmodel: nope\nparallel: [1]\ndecoding.top_k: 3\n"
    )
    assert faults([], text, tmp_path=tmp_path) == [
        "run.yaml: decoding.top_k: given twice",
        "run.yaml: model=nope: no such option; there are auto, tiny_gpt2; a folder is given as "
        "model.checkpoint_name_or_path=nope",
        "run.yaml: decoding.top_pp: unknown key; did you mean decoding.top_p?",
        "run.yaml: runntime: unknown key; did you mean runtime?",
        "run.yaml: parallel=[1]: must be the name of an option (parallel=NAME) or values for its keys: "
        "parallel.data_parallel, parallel.model_parallel, parallel.pipeline_stage, parallel.device_map",
    ]


def test_a_file_that_cannot_be_read_is_reported_with_the_other_faults(tmp_path: Path) -> None:
    assert faults(["nonsense=1"], "decoding: &a {}\n", tmp_path=tmp_path) == [
        "run.yaml, line 1: YAML anchors (&) and aliases (*) are not allowed",
        "nonsense: unknown key",
    ]


def test_an_option_of_the_users_own(options: Path, tmp_path: Path) -> None:
    model = tmp_path / "weights"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (options / "model" / "base.yaml").write_text(f"checkpoint_name_or_path: {model}\nbatch_size: 2\n")
    (options / "model" / "qwen2.5.yaml").write_text("defaults: [base, _self_]\nbatch_size: 3\ntype: qwen2\n")
    config = compose(["model=qwen2.5", "model.seq_length=99"], folder=options, tmp_path=tmp_path)
    assert (config.model.type, config.model.batch_size, config.model.seq_length) == ("qwen2", 3, 99)
    assert config.model.checkpoint_name_or_path == str(model)


def test_errors_of_added_options_name_their_files(options: Path, tmp_path: Path) -> None:
    (options / "model" / "bad.yaml").write_text("defaults: [worse]\nbatch_sizes: 3\ndtype: [1]\n")
    (options / "model" / "worse.yaml").write_text("_target_: os.system\n")
    folder = str(options).removeprefix(f"{tmp_path}/")
    assert faults(["model=bad", "decoding.top_k=x"], folder=options, tmp_path=tmp_path) == [
        f"{folder}/model/worse.yaml, line 1: _target_: "
        "names that begin with _ are special to Hydra and not allowed",
        f"{folder}/model/bad.yaml: model.batch_sizes: unknown key; did you mean model.batch_size?",
        f"{folder}/model/bad.yaml: model.dtype=[1]: must be one of auto, float32, float16, bfloat16",
        "decoding.top_k=x: must be a whole number",
    ]
    (options / "worst").mkdir()
    (options / "worst/a.yaml").write_text("# @package _global_\ndecoding: {top_k: x}\n")
    assert faults(["+worst=a"], folder=options, tmp_path=tmp_path) == [
        f"{folder}/worst/a.yaml: decoding.top_k=x: must be a whole number"
    ]


def test_options_that_build_on_each_other_are_refused(options: Path, tmp_path: Path) -> None:
    (options / "model" / "a.yaml").write_text("defaults: [b]\n")
    (options / "model" / "b.yaml").write_text("defaults: [a]\n")
    assert faults(["model=a"], folder=options, tmp_path=tmp_path) == [
        "model=a: its defaults lead back to itself"
    ]


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("defaults: x", "Invalid defaults list in 'model/a', defaults must be a list (got str)"),
        ("defaults: [../../x]", "In 'model/a': Could not load 'model/../../x'."),
        ("defaults: [{decoding: top_p}]", "In 'model/a': Could not find 'model/decoding/top_p'"),
        ("hydra: {run: {dir: x}}", "a.yaml: hydra: Hydra's own settings are fixed here; remove it"),
    ],
)
def test_what_hydra_refuses_is_one_line(options: Path, tmp_path: Path, text: str, expected: str) -> None:
    (options / "model" / "a.yaml").write_text(text)
    line, *_ = faults(["model=a"], folder=options, tmp_path=tmp_path)
    assert line.endswith(expected)


def test_an_experiment_sets_keys_and_options_of_all_groups(options: Path, tmp_path: Path) -> None:
    """Hydra's usual form; and a primary configuration of the user's own, and a group within another."""
    (options / "team/nlp").mkdir(parents=True)
    (options / "team/nlp/wild.yaml").write_text(
        "# @package _global_\ndefaults: [{override /decoding: top_p}]\ndecoding: {seed: 5, top_p: 0.5}\n"
    )
    decoding = compose(["+team/nlp=wild"], folder=options, tmp_path=tmp_path).decoding
    assert (decoding.do_sample, decoding.top_p, decoding.seed) == (True, 0.5, 5)
    assert (
        compose(["+team/nlp=wild", "decoding.seed=6"], folder=options, tmp_path=tmp_path).decoding.seed == 6
    )
    file = "decoding: {seed: 7, max_new_tokens: 9}\n"
    decoding = compose(["+team/nlp=wild"], file, options, tmp_path=tmp_path).decoding
    assert (decoding.seed, decoding.top_p, decoding.max_new_tokens) == (5, 0.5, 9)
    (options / "mine.yaml").write_text("defaults: [generate, {team/nlp: wild}, _self_]\nsystem: Hi\n")
    task, words = TASKS["generate"], ["model=tiny_gpt2", "prompts=Hi", "chat=true", "~decoding.seed"]
    config = compose_task(task, words, None, options, "mine").finish()
    assert isinstance(config, GenerateConfig)
    assert (config.system, config.decoding.top_p) == ("Hi", 0.5)
    with pytest.raises(
        ConfigError, match=r"--config-name mime: there is no such file.*; did you mean mine\?"
    ):
        compose_task(task, words, None, options, "mime").finish()


def test_a_group_can_be_left_out(tmp_path: Path) -> None:
    assert compose(["~decoding", "~decoding.seed"], tmp_path=tmp_path).decoding.do_sample is False
    assert faults(["~decodng"], tmp_path=tmp_path) == ["~decodng: unknown key; did you mean decoding?"]


def test_an_added_option_may_not_hide_a_shipped_one(options: Path, tmp_path: Path) -> None:
    (options / "model" / "auto.yaml").write_text("type: gpt2\n")
    (line,) = faults([], folder=options, tmp_path=tmp_path)
    assert line.endswith("model/auto.yaml: an option of this name is shipped; rename the file")


def test_a_folder_that_adds_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (line,) = faults([], folder=tmp_path / "empty", tmp_path=tmp_path)
    assert line.startswith("--config-dir empty: holds no .yaml files, itself or in group folders as data/, ")
    (line,) = faults([], folder=tmp_path / "emty", tmp_path=tmp_path)
    assert line == f"--config-dir emty: no such folder; did you mean {tmp_path}/empty?".replace(
        f"{tmp_path}/", ""
    )


@pytest.mark.parametrize("text", ["- 1\n", "prompts: [a\n", "a: &b 1\n"])
def test_of_a_file_that_cannot_be_read_nothing_else_is_said_to_be_missing(text: str, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        config_of("generate", "decoding.temperature=-1", "decoding.tok_k=3", file=file)
    first, *others = caught.value.lines
    assert first.startswith(f"{file}")
    assert others == [
        "decoding.tok_k: unknown key; did you mean decoding.top_k?",
        "decoding.temperature=-1.0: must be 0 (greedy) or from 0.000001 to 1000000",
    ]


BOMB = "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n"


def fault(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        read_mapping(path)
    return "\n".join(caught.value.lines)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\nb: {c: [x, 2.5, null, true]}\n", {"a": 1, "b": {"c": ["x", 2.5, None, True]}}),
        ("", {}),
        ("# nothing\n", {}),
        ("a: 2024-01-01\n", {"a": "2024-01-01"}),
        ("\ufeffa: 你好\n", {"a": "你好"}),
    ],
)
def test_plain_mappings_are_read(text: str, expected: object, tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(text, encoding="utf-8")
    assert read_mapping(file) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BOMB, ", line 1: YAML anchors (&) and aliases (*) are not allowed"),
        ("a: 1\nb: *c\n", ", line 2: YAML anchors (&) and aliases (*) are not allowed"),
        ("a: !!python/object/apply:os.system [x]\n", ", line 1: YAML tags (tag:yaml.org,2002:python/"),
        ("a: 1\nb: 2\na: 3\n", ", line 3: a: given twice"),
        ("a:\n  _target_: os.system\n", ", line 2: _target_: names that begin with _ are special"),
        ("a: [{_args_: 1}]\n", ", line 1: _args_: names that begin with _ are special"),
        ("1: a\n", ", line 1: a key must be text"),
        ("[a]: 1\n", ", line 1: a key must be text"),
        ("<<: {a: 1}\n", ", line 1: a key must be text"),
        ("- a\n", ": must hold a mapping of keys to values"),
        ("a: [\n", ": not valid YAML: "),
        ("a: \x07\n", ": not valid YAML: "),
        ("a: 1\n---\nb: 1\n", "more than one document"),
        ("a: " + "[" * 900 + "]" * 900, "nested deeper than 32 levels"),
        ("a: " + "[" * 5000 + "]" * 5000, "nest"),  # newer libyaml has a bound of its own, 1000 levels
        ("a: " + "9" * 5000, ": a number is too long to be read"),
        ("# @package _global_\na: 1\n", ": Hydra's @package header has no meaning in this file; remove it"),
    ],
)
def test_everything_else_is_refused(text: str, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(text)
    line = fault(file)
    assert line.startswith(str(file))
    assert expected in line


def test_all_bad_keys_are_named_at_once(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("a: {_x: 1}\nb: {c: 1, c: 2}\n2: 3\n")
    assert len(fault(file).splitlines()) == 3


def test_size_is_bounded(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_bytes(b"#" * LARGEST_FILE)
    assert read_mapping(file) == {}
    file.write_bytes(b"#" * (10 * LARGEST_FILE))
    assert "larger than 1 MiB" in fault(file)


def test_what_is_no_readable_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe9\n")
    os.mkfifo(tmp_path / "pipe")
    assert "not UTF-8 text (byte 3)" in fault(tmp_path / "latin.yaml")
    assert "not a regular file" in fault(tmp_path / "pipe")
    assert "Is a directory" in fault(tmp_path)
    assert f"no such file; did you mean {tmp_path / 'latin.yaml'}?" in fault(tmp_path / "latin.yml")


def test_every_key_has_its_line(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("a: 1\n\nb:\n  c: {d: 2}\n")
    assert read_with_lines(file) == ({"a": 1, "b": {"c": {"d": 2}}}, {"a": 1, "b": 3, "b.c": 4, "b.c.d": 4})


@pytest.mark.parametrize("of", ["{x: &a [1], y: *a}", "&a [*a, *a]", "[[&a 1], {y: *a}]"])
def test_aliases_are_allowed_where_nothing_is_built(of: str, tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(f"unread: {of}\nz: 1\n")
    assert read_with_lines(file, ("unread",))[0] == {"unread": None, "z": 1}
    assert "line 1: YAML anchors" in fault(file)


@pytest.mark.parametrize("text", ["unread: &a 1\nz: *a\n", "unread: 1\nz: &a 1\n", "z: {unread: &a 1}\n"])
def test_aliases_are_refused_everywhere_else(text: str, tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match="anchors"):
        read_with_lines(file, ("unread",))


def test_tags_are_refused_everywhere(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("unread: !!python/object/apply:os.getcwd []\n")
    with pytest.raises(ConfigError, match="tags"):
        read_with_lines(file, ("unread",))
