"""Speculative decoding: what it needs of the model's options, and an assistant that nothing asks for."""

import shutil
from pathlib import Path

import pytest

from mindbatch.config.compose import compose_task
from mindbatch.config.model_task import ModelTaskConfig
from mindbatch.io.errors import ConfigError
from mindbatch.tasks.registry import TASKS

DRAFTS = "decoding.num_assistant_tokens=5"


def composed(task: str, folder: Path, *overrides: str) -> ModelTaskConfig:
    inputs = {
        "generate": ["prompts=Hi"],
        "compare": ["prompts=Hi", "decoding=[greedy]"],
        "batch": ["data.path=-", f"output.dir={folder}/run"],
        "plan": ["data.path=-"],
    }
    given = [f"model.checkpoint_name_or_path={folder}", *inputs[task], *overrides]
    config = compose_task(TASKS[task], given).finish()
    assert isinstance(config, ModelTaskConfig)
    return config


@pytest.mark.parametrize("task", ["generate", "compare", "batch", "plan"])
def test_drafting_needs_one(task: str, model_folder: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        composed(task, model_folder, DRAFTS)
    [fault] = caught.value.faults
    assert fault.startswith("decoding.num_assistant_tokens=5: needs model.assistant, the folder of a smaller")
    config = composed(task, model_folder, DRAFTS, f"model.assistant={model_folder}")
    assert config.model.assistant == str(model_folder)


def test_prompt_lookup_needs_none(model_folder: Path) -> None:
    composed("generate", model_folder, "decoding.prompt_lookup_num_tokens=5")


@pytest.mark.parametrize("name", ["num_assistant_tokens", "prompt_lookup_num_tokens"])
def test_it_needs_the_past(name: str, model_folder: Path) -> None:
    given = [f"decoding.{name}=3", *([f"model.assistant={model_folder}"] if "assistant" in name else [])]
    with pytest.raises(ConfigError) as caught:
        composed("generate", model_folder, "model.use_past=false", *given)
    assert caught.value.faults == (f"decoding.{name}=3: cannot go with model.use_past=false; set it to true",)


def test_one_that_nothing_asks_for(model_folder: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        composed("generate", model_folder, f"model.assistant={model_folder}")
    [fault] = caught.value.faults
    assert fault.startswith("model.assistant: has no effect with decoding.num_assistant_tokens=0")


@pytest.mark.parametrize("task", ["batch", "plan", "compare"])
def test_rows_and_strategies_may_ask_for_one(task: str, model_folder: Path) -> None:
    composed(task, model_folder, f"model.assistant={model_folder}")


def test_a_strategy_of_several_that_drafts(model_folder: Path) -> None:
    given = "decoding=[greedy,speculative]"
    with pytest.raises(ConfigError, match=r"^decoding\.num_assistant_tokens=5: needs model\.assistant"):
        composed("compare", model_folder, given)
    composed("compare", model_folder, given, f"model.assistant={model_folder}")


def test_its_path_is_looked_at_and_kept(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(model_folder, tmp_path / "small")
    monkeypatch.chdir(tmp_path)
    config = composed("generate", model_folder, DRAFTS, "model.assistant=small")
    assert f"assistant: {tmp_path}/small\n" in config.unresolved_yaml
    assert config.resolved_settings["model"]["assistant"] == f"{tmp_path}/small"
    (tmp_path / "small" / "config.json").unlink()
    for folder, said in (("small", "holds no config.json"), ("smal", "did you mean small?")):
        with pytest.raises(ConfigError) as caught:
            composed("generate", model_folder, DRAFTS, f"model.assistant={folder}")
        [fault] = caught.value.faults
        assert fault.startswith(f"model.assistant={folder}: ")
        assert said in fault
