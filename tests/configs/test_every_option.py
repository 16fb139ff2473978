"""Every shipped option of every group composes; those that this version can run also validate."""

from pathlib import Path

import pytest

from mindbatch.config.compose import compose_task
from mindbatch.config.options import OptionFiles
from mindbatch.config.paths import configs_folder, data_root
from mindbatch.config.schema import SCHEMAS, GenerateConfig
from mindbatch.errors import ConfigError
from mindbatch.tasks.registry import TASKS

OPTIONS = OptionFiles(configs_folder(), None)
EVERY = [(group, name) for group in sorted(OPTIONS.groups) for name in OPTIONS.names(group)]
DISTRIBUTED = {("parallel", "mp2"), ("parallel", "mp8"), ("parallel", "dp2")}


def test_the_groups_are_those_of_the_design() -> None:
    assert {"model", "decoding", "parallel", "runtime"} <= OPTIONS.groups


def test_each_task_has_a_schema_and_a_file() -> None:
    assert SCHEMAS.keys() == TASKS.keys()
    assert all((configs_folder() / f"{name}.yaml").is_file() for name in TASKS)


@pytest.mark.parametrize(("group", "name"), EVERY)
def test_option_composes(group: str, name: str) -> None:
    assert compose_task("generate", [f"{group}={name}"]).log.lines == []


@pytest.mark.parametrize(("group", "name"), sorted(set(EVERY) - DISTRIBUTED))
def test_option_validates(group: str, name: str, model_folder: Path) -> None:
    given = [f"{group}={name}", f"model.checkpoint_name_or_path={model_folder}", "prompts=Hi"]
    assert isinstance(compose_task("generate", given).finish(), GenerateConfig)


@pytest.mark.parametrize(("group", "name"), sorted(DISTRIBUTED))
def test_distributed_option_says_that_there_is_no_launch_yet(
    group: str, name: str, model_folder: Path
) -> None:
    given = [f"{group}={name}", f"model.checkpoint_name_or_path={model_folder}", "prompts=Hi"]
    with pytest.raises(ConfigError, match="not available in this version") as caught:
        compose_task("generate", given).finish()
    assert len(caught.value.faults) == 1


def test_the_shipped_model_is_found_in_the_shipped_data() -> None:
    composition = compose_task("generate", ["model=tiny_gpt2"])
    assert composition.tree.model.checkpoint_name_or_path == "shipped:examples/tiny_gpt2"
    assert (data_root() / "examples").is_dir()


def test_every_key_is_documented_in_one_line() -> None:
    from mindbatch.config.keys import schema_keys

    for schema in SCHEMAS.values():
        for key in schema_keys(schema).keys.values():
            assert key.meaning
            assert "\n" not in key.meaning
            assert key.expected
