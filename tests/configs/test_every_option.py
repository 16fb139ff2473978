"""Every shipped option of every group composes; those that this version can run also validate."""

import dataclasses
import re
from pathlib import Path
from typing import get_type_hints

import pytest

from mindbatch.config.compose import compose_task
from mindbatch.config.options import OptionFiles
from mindbatch.config.paths import configs_folder, data_root
from mindbatch.config.schema import TaskConfig, schema_keys
from mindbatch.decoding.params import DecodingParams
from mindbatch.decoding.registry import strategy_for
from mindbatch.tasks.registry import TASKS
from task_configs import config_of

OPTIONS = OptionFiles(configs_folder(), None)
EVERY = [(group, name) for group in sorted(OPTIONS.groups) for name in OPTIONS.names(group)]
OF_A_DATASET = {(group, name) for group, name in EVERY if group == "data"}
OF_AN_EVALUATION = {(group, name) for group, name in EVERY if group == "task"}
OF_DECODING = {(group, name) for group, name in EVERY if group == "decoding"}
IN_NEED_OF_A_TABLE = {("launch", "rank_table")}


@pytest.fixture(autouse=True)
def _ray_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mindbatch.io.installation.find_spec", lambda name: name)


def together(task: str, left_out: set[tuple[str, str]]) -> list[list[str]]:
    """Overrides in which every option comes once with a task: one of each group at a time."""
    groups: dict[str, list[str]] = {}
    for group, name in EVERY:
        if group in schema_keys(TASKS[task].schema).sections and (group, name) not in left_out:
            groups.setdefault(group, []).append(name)
    count = max(map(len, groups.values()))
    return [
        [f"{group}={names[place % len(names)]}" for group, names in groups.items()] for place in range(count)
    ]


def in_need(group: str, name: str, model_folder: Path) -> list[str]:
    """What an option cannot do without."""
    if (group, name) == ("decoding", "model_defaults"):
        (model_folder / "generation_config.json").write_text("{}")
    needed = {
        ("decoding", "speculative"): f"model.assistant={model_folder}",
        ("launch", "rank_table"): f"launch.rank_table={model_folder}/config.json",
    }
    return [needed[group, name]] if (group, name) in needed else []


def test_the_groups_are_those_of_the_design() -> None:
    assert {"model", "decoding", "parallel", "launch", "runtime", "data"} <= OPTIONS.groups


def test_each_task_has_a_schema_and_a_file() -> None:
    assert all(issubclass(task.schema, TaskConfig) for task in TASKS.values())
    assert all((configs_folder() / f"{task.primary}.yaml").is_file() for task in TASKS.values())


@pytest.mark.parametrize("task", TASKS)
def test_tasks_share_their_sections(task: str) -> None:
    """So that an option which composes with `generate` or `batch` does with each."""
    own = get_type_hints(TASKS[task].schema)
    for name in own.keys() & OPTIONS.groups:
        tried = [
            get_type_hints(TASKS[each].schema).get(name, object) for each in ("generate", "batch", "evaluate")
        ]
        assert issubclass(own[name], tuple(set(tried) - {object}))


# What is neither decoding's nor in need of a table validates for a dataset, below, in the same sections.
@pytest.mark.fast_cases(8)
@pytest.mark.parametrize(("group", "name"), sorted(OF_DECODING | IN_NEED_OF_A_TABLE))
def test_option_validates(group: str, name: str, model_folder: Path) -> None:
    given = [f"{group}={name}", f"model.checkpoint_name_or_path={model_folder}", "prompts=Hi"]
    given += in_need(group, name, model_folder)
    config_of("generate", *given)


# Decoding's are the same section, judged by the same function, as those of `generate`.
@pytest.mark.parametrize("overrides", together("batch", OF_DECODING | IN_NEED_OF_A_TABLE), ids=" ".join)
def test_options_validate_for_a_dataset(overrides: list[str], model_folder: Path, tmp_path: Path) -> None:
    given = [*overrides, f"model.checkpoint_name_or_path={model_folder}"]
    given += ["data.path=-", f"output.dir={tmp_path}/run"]
    config_of("batch", *given)


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize("overrides", together("evaluate", set(EVERY) - OF_AN_EVALUATION), ids=" ".join)
def test_options_validate_for_an_evaluation(overrides: list[str], model_folder: Path, tmp_path: Path) -> None:
    given = [*overrides, f"model.checkpoint_name_or_path={model_folder}", "data.path=-"]
    given += [f"output.dir={tmp_path}/evaluation"]
    config_of("evaluate", *given)


STRATEGIES = {
    "beam4": "BeamSearch",
    "beam_sampling": "BeamSampling",
    "group_beam": "GroupBeamSearch",
    "contrastive": "ContrastiveSearch",
    "sample_and_rank": "SampleAndRank",
    "speculative": "SpeculativeStrategy",
    "prompt_lookup": "SpeculativeStrategy",
}
GREEDY = {"greedy", *STRATEGIES, "model_defaults"} - {"beam_sampling", "sample_and_rank"}
"""Those that draw nothing; model_defaults before a model was asked."""


def params_of(name: str) -> DecodingParams:
    """What a decoding option composes to."""
    settings = compose_task(TASKS["generate"], [f"decoding={name}"]).settings.values()
    parts = ((*item.key.partition("."), item.value) for item in settings)
    return DecodingParams(**{leaf: value for section, _, leaf, value in parts if section == "decoding"})


@pytest.mark.parametrize("name", OPTIONS.names("decoding"))
def test_a_decoding_option_asks_for_the_strategy_of_its_name(name: str) -> None:
    params = params_of(name)
    assert type(strategy_for(params)).__name__ == STRATEGIES.get(name, "SamplingStrategy")
    assert params.greedy == (name in GREEDY)
    if name in {field.name for field in dataclasses.fields(params)}:
        assert getattr(params, name) != getattr(DecodingParams(), name)


def test_no_two_decoding_options_are_the_same() -> None:
    names = set(OPTIONS.names("decoding")) - {"model_defaults"}
    assert len({params_of(name) for name in names}) == len(names)


def test_the_worked_sums_are_right() -> None:
    template = compose_task(TASKS["batch"], ["data=gsm8k"]).settings["data.template"].value
    sums = re.findall(r"<<([\d+*/-]+)=(\d+)>>", template)
    assert len(sums) == template.count("<<") > 8
    for terms, result in sums:
        assert eval(terms, {"__builtins__": {}}) == int(result)
    assert template.endswith("\n\nQuestion: {{ question }}\nAnswer:")


def test_the_shipped_model_is_found_in_the_shipped_data() -> None:
    composition = compose_task(TASKS["generate"], ["model=tiny_gpt2"])
    assert composition.settings["model.checkpoint_name_or_path"].value == "shipped:examples/tiny_gpt2"
    assert (data_root() / "examples").is_dir()


def test_every_key_is_documented_in_one_line() -> None:
    for task in TASKS.values():
        for key in schema_keys(task.schema).keys.values():
            assert key.meaning
            assert "\n" not in key.meaning
            assert key.takes
