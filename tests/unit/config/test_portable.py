"""A saved configuration gives the same one from anywhere, with references and never with a secret."""

from pathlib import Path

import pytest

from mindbatch.config.saved import save_config
from mindbatch.config.schema import schema_keys
from mindbatch.io.errors import ConfigError
from mindbatch.run.batch_config import BatchConfig
from mindbatch.tasks.generate.schema import GenerateConfig
from mindbatch.tasks.registry import TASKS
from task_configs import config_of

SECRET = "tr0ub4dor"


@pytest.fixture
def here(model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a file of each kind in it."""
    for name in ("rows.jsonl", "keys.txt", "template.txt"):
        (tmp_path / name).write_text("x\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MY_SECRET", SECRET)
    return tmp_path


def composed(*overrides: str) -> BatchConfig:
    return config_of("batch", "model.checkpoint_name_or_path=llama-32-heads", *overrides)


def reread(config: BatchConfig, folder: Path, monkeypatch: pytest.MonkeyPatch) -> BatchConfig:
    """The configuration that the saved one gives in another folder."""
    folder.mkdir()
    (folder / "saved.yaml").write_text(config.unresolved_yaml)
    monkeypatch.chdir(folder)
    again = config_of("batch", file=folder / "saved.yaml")
    return again


def test_paths_mean_the_same_from_everywhere(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = composed(
        "data.path=./rows.jsonl",
        "data.filter_keys=keys.txt",
        "data.template_file=template.txt",
        "output.dir=runs/a",
        "model.tokenizer=llama-32-heads",
    )
    assert config.output.dir == "runs/a"
    again = reread(config, here / "elsewhere", monkeypatch)
    assert again.model.checkpoint_name_or_path == again.model.tokenizer == f"{here}/llama-32-heads"
    assert again.data.path == f"{here}/rows.jsonl"
    assert again.data.filter_keys == f"{here}/keys.txt"
    assert again.data.template_file == f"{here}/template.txt"
    assert again.output.dir == f"{here}/runs/a"
    assert again.resolved_settings == config.resolved_settings
    assert again.unresolved_yaml == config.unresolved_yaml


@pytest.mark.parametrize("written", ["[rows.jsonl,./keys.txt]", '["rows.jsonl", "keys.txt"]'])
def test_several_files_mean_the_same_from_everywhere(
    written: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = composed(f"data.path={written}", "output.dir=runs/a")
    again = reread(config, here / "elsewhere", monkeypatch)
    assert again.data.path == (f"{here}/rows.jsonl", f"{here}/keys.txt")
    assert again.resolved_settings == config.resolved_settings
    assert again.unresolved_yaml == config.unresolved_yaml


def test_one_path_is_taken_to_the_letter(here: Path) -> None:
    """Brackets begin a list only where others end it: they are of patterns, too."""
    for name in ("a, b {c}.csv", "1e3", "=x"):
        (here / name).touch()
        assert composed(f"data.path={name}", "output.dir=runs/a").data.path == name
    assert composed("data.path=[r]ows.*", "output.dir=runs/a").data.path == "[r]ows.*"
    with pytest.raises(ConfigError) as refused:
        composed("data.path=[rows.jsonl,-,nowhere]", "output.dir=runs/a")
    assert refused.value.lines == (
        "data.path=nowhere: no such file or folder",
        "data.path: standard input (-) cannot be in a list; give it alone",
    )


def test_patterns_and_standard_input_and_lists(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "path: '-'" in composed("data.path=-", "output.dir=a").unresolved_yaml
    config = composed("data.path=*.jsonl", "data.filter_keys=[a, 7]", "output.dir=a")
    again = reread(config, here / "elsewhere", monkeypatch)
    assert again.data.path == f"{here}/*.jsonl"
    assert again.data.filter_keys == ["a", 7]


def test_what_is_shipped_or_referred_to_stays_as_written(here: Path) -> None:
    config = composed(
        "model=tiny_gpt2",
        "model.checkpoint_name_or_path=shipped:examples/tiny_gpt2",
        "data.path=rows.jsonl",
        "output.dir=${oc.env:MY_SECRET}/a",
    )
    assert "checkpoint_name_or_path: shipped:examples/tiny_gpt2" in config.unresolved_yaml
    assert "dir: ${oc.env:MY_SECRET}/a" in config.unresolved_yaml
    assert config.output.dir == f"{SECRET}/a"


def test_a_working_directory_with_odd_characters(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = here / "${x} 'y'"
    odd.mkdir()
    monkeypatch.chdir(odd)
    (odd / "rows.jsonl").write_text("x\n")
    config = composed(
        "model.checkpoint_name_or_path=../llama-32-heads", "data.path=rows.jsonl", "output.dir=a"
    )
    assert reread(config, here / "elsewhere", monkeypatch).data.path == f"{odd}/rows.jsonl"


def test_settings_are_whole_and_hold_no_secret(here: Path) -> None:
    config = composed(
        "data.path=rows.jsonl",
        "output.dir=runs/a",
        "data.chat=true",
        "data.system=${oc.env:MY_SECRET}",
        "decoding.stop=[a, '${oc.env:MY_SECRET}']",
        "model.seq_length=${data.limit}",
        "data.limit=9",
    )
    assert config.data.system == SECRET
    settings = config.resolved_settings
    assert SECRET not in str(settings)
    assert settings["data"]["system"] == "${oc.env:MY_SECRET}"
    assert settings["decoding"]["stop"] == ["a", "${oc.env:MY_SECRET}"]
    assert settings["model"]["checkpoint_name_or_path"] == f"{here}/llama-32-heads"
    assert (settings["data"]["limit"], settings["progress"]) == (9, "auto")
    names = {
        f"{name}.{leaf}" if isinstance(value, dict) else name
        for name, value in settings.items()
        for leaf in (value if isinstance(value, dict) else [""])
    }
    keys = schema_keys(TASKS["batch"].schema).keys
    assert names == {name for name, key in keys.items() if key.is_kept}


def test_one_reference_leaves_the_other_paths_absolute(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        (here / name).mkdir()
        (here / name / "adapter_config.json").write_text("{}")
    monkeypatch.setenv("ADAPTER", str(here / "two"))
    given = ["data.path=rows.jsonl", "output.dir=a", "lora.adapters={one: one, two: '${oc.env:ADAPTER}'}"]
    adapters = composed(*given).resolved_settings["lora"]["adapters"]
    assert adapters == {"one": f"{here}/one", "two": "${oc.env:ADAPTER}"}


def test_a_configuration_made_in_python_has_no_settings_of_another() -> None:
    assert BatchConfig().resolved_settings == {}
    assert BatchConfig().unresolved_yaml == ""


def prompting(model_folder: Path, *overrides: str, config_file: Path | None = None) -> GenerateConfig:
    given = [f"model.checkpoint_name_or_path={model_folder}", "prompts=Hi", *overrides]
    return config_of("generate", *given, file=config_file)


def test_a_secret_reaches_the_task_but_not_the_saved_file(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SECRET", SECRET)
    config = prompting(
        model_folder, "chat=true", "system=${oc.env:MY_SECRET}", 'prompts=["${oc.env:MY_SECRET}"]'
    )
    assert config.system == SECRET
    assert config.prompts == [SECRET]
    saved = tmp_path / "config.yaml"
    save_config(config, saved)
    assert SECRET not in saved.read_text()
    assert "system: ${oc.env:MY_SECRET}" in saved.read_text()


def test_a_saved_configuration_gives_the_same_one_back(model_folder: Path, tmp_path: Path) -> None:
    config = prompting(
        model_folder, "decoding=top_p", "decoding.stop=[a, b]", "prompts=['1,2', '\\${x}', [3, 4]]"
    )
    assert config.prompts == ["1,2", "${x}", [3, 4]]
    saved = tmp_path / "config.yaml"
    save_config(config, saved)
    again = config_of("generate", file=saved)
    assert again == config
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []


def test_values_of_the_environment_are_converted_to_the_type_of_the_key(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LENGTH", "64")
    assert prompting(model_folder, "model.seq_length=${oc.env:LENGTH}").model.seq_length == 64


def test_a_value_of_the_wrong_type_is_refused_without_being_shown(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LENGTH", SECRET)
    with pytest.raises(ConfigError) as caught:
        prompting(model_folder, "model.seq_length=${oc.env:LENGTH}")
    assert caught.value.lines == (
        "model.seq_length=${oc.env:LENGTH}: what it stands for must be a whole number, at least 1, or null",
    )


def test_a_missing_variable_is_named(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LENGTH", raising=False)
    with pytest.raises(ConfigError, match="the environment variable LENGTH is not set"):
        prompting(model_folder, "model.seq_length=${oc.env:LENGTH}")


@pytest.mark.parametrize("text", ["costs ${x}", "${", "${a b}"])
def test_a_prompt_that_looks_like_a_reference_is_told_how_to_be_written(
    model_folder: Path, text: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        prompting(model_folder, f'prompts=["{text}"]')
    (line,) = caught.value.lines
    assert line.endswith("${ begins a reference; write \\${ for the characters themselves")


def test_an_environment_value_is_not_resolved_again(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTER", "${oc.env:INNER}")
    monkeypatch.setenv("INNER", SECRET)
    assert prompting(model_folder, 'prompts=["${oc.env:OUTER}"]').prompts == ["${oc.env:INNER}"]
