"""${...} in values: resolved for the task, never in what is saved or printed."""

from pathlib import Path

import pytest

from mindbatch.config.compose import compose_task
from mindbatch.config.composition import save_config
from mindbatch.io.errors import ConfigError
from mindbatch.io.storage import StorageError
from mindbatch.tasks.generate.schema import GenerateConfig
from mindbatch.tasks.registry import TASKS

SECRET = "tr0ub4dor"


def compose(model_folder: Path, *overrides: str, config_file: Path | None = None) -> GenerateConfig:
    given = [f"model.checkpoint_name_or_path={model_folder}", "prompts=Hi", *overrides]
    config = compose_task(TASKS["generate"], given, config_file).finish()
    assert isinstance(config, GenerateConfig)
    return config


def test_a_secret_reaches_the_task_but_not_the_saved_file(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SECRET", SECRET)
    config = compose(
        model_folder, "chat=true", "system=${oc.env:MY_SECRET}", 'prompts=["${oc.env:MY_SECRET}"]'
    )
    assert config.system == SECRET
    assert config.prompts == [SECRET]
    saved = tmp_path / "config.yaml"
    save_config(config, saved)
    assert SECRET not in saved.read_text()
    assert "system: ${oc.env:MY_SECRET}" in saved.read_text()


def test_a_saved_configuration_gives_the_same_one_back(model_folder: Path, tmp_path: Path) -> None:
    config = compose(
        model_folder, "decoding=top_p", "decoding.stop=[a, b]", "prompts=['1,2', '\\${x}', [3, 4]]"
    )
    assert config.prompts == ["1,2", "${x}", [3, 4]]
    saved = tmp_path / "config.yaml"
    save_config(config, saved)
    again = compose_task(TASKS["generate"], [], saved).finish()
    assert again == config
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []


def test_a_failed_save_leaves_what_was_there(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = tmp_path / "config.yaml"
    saved.write_text("before")

    def full_disk(handle: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(StorageError, match=r"config\.yaml: cannot be written \(No space left"):
        save_config(compose(model_folder), saved)
    assert saved.read_text() == "before"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["config.yaml", model_folder.name]


def test_values_of_the_environment_are_converted_to_the_type_of_the_key(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LENGTH", "64")
    assert compose(model_folder, "model.seq_length=${oc.env:LENGTH}").model.seq_length == 64


def test_a_value_of_the_wrong_type_is_refused_without_being_shown(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LENGTH", SECRET)
    with pytest.raises(ConfigError) as caught:
        compose(model_folder, "model.seq_length=${oc.env:LENGTH}")
    assert caught.value.faults == (
        "model.seq_length=${oc.env:LENGTH}: what it stands for must be a whole number or null",
    )


def test_a_missing_variable_is_named(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LENGTH", raising=False)
    with pytest.raises(ConfigError, match="the environment variable LENGTH is not set"):
        compose(model_folder, "model.seq_length=${oc.env:LENGTH}")


@pytest.mark.parametrize("text", ["costs ${x}", "${", "${a b}"])
def test_a_prompt_that_looks_like_a_reference_is_told_how_to_be_written(
    model_folder: Path, text: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(model_folder, f'prompts=["{text}"]')
    (line,) = caught.value.faults
    assert line.endswith("${ begins a reference; write \\${ for the characters themselves")


def test_an_environment_value_is_not_resolved_again(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTER", "${oc.env:INNER}")
    monkeypatch.setenv("INNER", SECRET)
    assert compose(model_folder, 'prompts=["${oc.env:OUTER}"]').prompts == ["${oc.env:INNER}"]
