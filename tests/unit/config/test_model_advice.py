"""What a model's generation_config.json recommends: taken if asked for, below what is given; else a note."""

import json
from pathlib import Path

import pytest

from mindbatch.config.compose import compose_task
from mindbatch.config.model_task import ModelTaskConfig
from mindbatch.io.errors import ConfigError
from mindbatch.tasks.registry import TASKS

SAMPLING = {"do_sample": True, "temperature": 0.6, "max_new_tokens": 9, "guidance_scale": 2}


@pytest.fixture
def recommending(model_folder: Path) -> Path:
    (model_folder / "generation_config.json").write_text(json.dumps(SAMPLING))
    return model_folder


def composed(task: str, folder: Path, *given: str) -> ModelTaskConfig:
    more = ["data.path=-", f"output.dir={folder}-run"] if task == "batch" else ["prompts=Hi"]
    config = compose_task(TASKS[task], [f"model.checkpoint_name_or_path={folder}", *more, *given]).finish()
    assert isinstance(config, ModelTaskConfig)
    return config


@pytest.mark.parametrize("task", ["generate", "batch"])
def test_taken_below_what_is_given(task: str, recommending: Path) -> None:
    config = composed(task, recommending, "decoding=model_defaults", "decoding.max_new_tokens=4")
    decoding = config.decoding
    assert (decoding.do_sample, decoding.temperature, decoding.max_new_tokens) == (True, 0.6, 4)
    assert [line for line in config.notes if "guidance_scale has no effect" in line] == list(config.notes)
    assert "temperature: 0.6" in config.unresolved_yaml
    assert config.resolved_settings["decoding"]["temperature"] == 0.6


def test_one_of_several_strategies(recommending: Path) -> None:
    config = composed("compare", recommending, "decoding=[greedy,model_defaults]", "decoding.seed=5")
    greedy, model = config.variants["greedy"], config.variants["model_defaults"]
    assert (greedy.do_sample, greedy.temperature, greedy.seed) == (False, 1.0, 5)
    assert (model.do_sample, model.temperature, model.seed) == (True, 0.6, 5)


def test_one_of_several_with_values_of_its_own(recommending: Path) -> None:
    strategies = "[{option: model_defaults, seed: 1}, {option: model_defaults, temperature: 0.2}]"
    config = composed("compare", recommending, f"decoding={strategies}", "decoding.max_new_tokens=4")
    seeded, cooler = config.variants.values()
    assert (seeded.do_sample, seeded.temperature, seeded.seed) == (True, 0.6, 1)
    assert (cooler.do_sample, cooler.temperature, cooler.max_new_tokens) == (True, 0.2, 4)
    assert len([line for line in config.notes if "guidance_scale has no effect" in line]) == 1


@pytest.mark.parametrize("task", ["generate", "batch"])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), True),
        (("decoding.max_new_tokens=3",), True),
        (("decoding.do_sample=false",), False),
        (("decoding=greedy",), False),
        (("decoding.num_beams=2",), False),
    ],
)
def test_a_note_where_nobody_asked_for_greedy(
    task: str, given: tuple[str, ...], said: bool, recommending: Path
) -> None:
    notes = composed(task, recommending, *given).notes
    assert [("do_sample=true, temperature=0.6" in line) for line in notes] == [True] * said


def test_no_note_where_the_model_recommends_nothing(model_folder: Path) -> None:
    assert composed("generate", model_folder).notes == ()


def test_a_folder_without_recommendations(model_folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"decoding=model_defaults: .*generation_config\.json: not there"):
        composed("generate", model_folder, "decoding=model_defaults")
