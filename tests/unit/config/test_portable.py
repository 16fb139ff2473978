"""A saved configuration gives the same one from anywhere, and neither it nor the settings hold a secret."""

from pathlib import Path

import pytest

from mindbatch.config.compose import compose_task
from mindbatch.config.schema import schema_keys
from mindbatch.run.batch_config import BatchConfig
from mindbatch.tasks.registry import TASKS

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
    config = compose_task(
        TASKS["batch"], ["model.checkpoint_name_or_path=llama-32-heads", *overrides]
    ).finish()
    assert isinstance(config, BatchConfig)
    return config


def reread(config: BatchConfig, folder: Path, monkeypatch: pytest.MonkeyPatch) -> BatchConfig:
    """The configuration that the saved one gives in another folder."""
    folder.mkdir()
    (folder / "saved.yaml").write_text(config.unresolved_yaml)
    monkeypatch.chdir(folder)
    again = compose_task(TASKS["batch"], [], folder / "saved.yaml").finish()
    assert isinstance(again, BatchConfig)
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


def test_a_configuration_made_in_python_has_no_settings_of_another() -> None:
    assert BatchConfig().resolved_settings == {}
    assert BatchConfig().unresolved_yaml == ""
