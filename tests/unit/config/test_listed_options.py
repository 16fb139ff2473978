"""A list of options for a group: each makes a variant, with what is given beside the list."""

from pathlib import Path

import pytest

from mindbatch.config.compose import compose_task
from mindbatch.config.composition import Composition
from mindbatch.config.options import OptionFiles
from mindbatch.config.paths import configs_folder
from mindbatch.config.schema import TaskConfig
from mindbatch.io.errors import ConfigError
from mindbatch.tasks.evaluate.compare_schema import CompareConfig
from mindbatch.tasks.registry import TASKS, task_page

OPTIONS = OptionFiles(configs_folder(), None)


@pytest.fixture
def given(model_folder: Path) -> list[str]:
    return [f"model.checkpoint_name_or_path={model_folder}", "prompts=Hi"]


@pytest.fixture
def own_options(tmp_path: Path) -> Path:
    """A folder with two strategies, of which one is greedy and one samples; each says how many tokens."""
    folder = tmp_path / "own"
    (folder / "decoding").mkdir(parents=True)
    (folder / "decoding/short.yaml").write_text("max_new_tokens: 3\n")
    (folder / "decoding/wild.yaml").write_text("do_sample: true\ntemperature: 3.0\nmax_new_tokens: 9\n")
    return folder


def composed(*arguments: str, own: Path | None = None, file: Path | None = None) -> TaskConfig:
    return compose_task(TASKS["compare"], list(arguments), file, own).finish()


def faults(*arguments: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        composed(*arguments)
    return list(caught.value.faults)


def test_each_option_has_its_own_values_and_those_given_for_all(given: list[str], own_options: Path) -> None:
    config = composed(*given, "decoding=[short,wild]", "decoding.seed=7", own=own_options)
    assert list(config.variants) == ["short", "wild"]
    short, wild = config.variants.values()
    assert (short.do_sample, short.temperature, short.max_new_tokens, short.seed) == (False, 1.0, 3, 7)
    assert (wild.do_sample, wild.temperature, wild.max_new_tokens, wild.seed) == (True, 3.0, 9, 7)


def test_what_is_given_goes_before_the_options(given: list[str], own_options: Path) -> None:
    """Wherever it stands, and in a file, too."""
    file = own_options / "compare.yaml"
    file.write_text("decoding.max_new_tokens: 5\ndecoding: [wild]\n")
    for config in (
        composed("decoding.max_new_tokens=5", "decoding=[short,wild]", *given, own=own_options),
        composed(*given, "decoding=[short,wild]", own=own_options, file=file),
    ):
        assert [each.max_new_tokens for each in config.variants.values()] == [5, 5]


@pytest.mark.parametrize("written", ["decoding=[greedy,sampling]", "decoding=greedy,sampling"])
def test_a_list_needs_no_brackets(given: list[str], written: str) -> None:
    assert list(composed(*given, written).variants) == ["greedy", "sampling"]


def test_one_name_is_a_list_of_one(given: list[str]) -> None:
    assert list(composed(*given, "decoding=sampling").variants) == ["sampling"]


def test_without_a_list_there_is_that_of_the_schema(given: list[str]) -> None:
    assert tuple(composed(*given).variants) == CompareConfig.listed_options


def test_every_shipped_option_can_be_listed() -> None:
    names = OPTIONS.names("decoding")
    composition = compose_task(TASKS["compare"], [f"decoding=[{','.join(names)}]"])
    assert composition.log.lines == []
    assert list(composition.variants) == names


def test_the_last_list_counts(given: list[str]) -> None:
    assert list(composed(*given, "decoding=[greedy]", "decoding=[sampling]").variants) == ["sampling"]


def test_an_unknown_name_gets_the_nearest_and_the_others_are_checked(given: list[str]) -> None:
    unknown, ignored = faults(*given, "decoding=[gredy,greedy,sampling]", "decoding.top_k=4")
    assert unknown.startswith("decoding=gredy: no such option; there are ")
    assert unknown.endswith("; did you mean greedy?")
    assert ignored.startswith("greedy: decoding.top_k=4 has no effect with decoding.do_sample=false")


def test_a_value_that_is_wrong_for_all_is_named_once(given: list[str]) -> None:
    assert faults(*given, "decoding=[greedy,sampling]", "decoding.seed=x", "decoding.max_new_tokens=-1") == [
        "decoding.seed='x': must be a whole number, from 0 to 18446744073709551615, or random",
        "decoding.max_new_tokens=-1: must be a whole number, at least 1, or null",
    ]


@pytest.mark.parametrize("value", ["[]", "[greedy,greedy]", "[1]", "[[greedy]]", "[null]"])
def test_other_lists_are_refused(given: list[str], value: str) -> None:
    assert "must be a list of options, each once" in faults(*given, f"decoding={value}")[0]


def test_the_saved_configuration_gives_the_same_again(given: list[str], tmp_path: Path) -> None:
    first = composed(*given, "decoding=[greedy,sampling]", "decoding.stop=['${oc.env:HOME}',b]", "limit=2")
    assert "decoding:\n- greedy\n- sampling\n" in first.unresolved_yaml
    assert "${oc.env:HOME}" in first.unresolved_yaml
    file = tmp_path / "saved.yaml"
    file.write_text(first.unresolved_yaml)
    again = composed(file=file)
    assert (again.variants, again.unresolved_yaml) == (first.variants, first.unresolved_yaml)


def test_what_is_printed_is_what_was_composed(given: list[str]) -> None:
    composition: Composition = compose_task(
        TASKS["compare"], [*given, "decoding=[greedy]", "decoding.seed=3"]
    )
    assert "decoding:\n- greedy\n" in composition.unresolved_yaml
    assert composition.unresolved_yaml.endswith("decoding.seed: 3\n")


def test_other_tasks_take_one_option(given: list[str]) -> None:
    with pytest.raises(ConfigError, match="must be the name of an option"):
        compose_task(TASKS["generate"], [*given, "decoding=[greedy]"]).finish()
    assert compose_task(TASKS["generate"], [*given, "decoding=greedy"]).finish().variants == {}


def test_the_help_page_shows_lists() -> None:
    page = task_page(TASKS["compare"], OPTIONS, {"--config FILE": "take values from a YAML file"})
    assert "decoding='[NAME,...]' lists some of these: " in page
    assert f"decoding='[{','.join(CompareConfig.listed_options)}]'" in page


def test_inputs_are_checked_as_those_of_generate(model_folder: Path, tmp_path: Path) -> None:
    model = f"model.checkpoint_name_or_path={model_folder}"
    assert faults(model) == [
        "nothing to generate: give prompts='[\"One, two,\"]', prompts_file=FILE (- is standard input), "
        "messages=..."
    ]
    (tmp_path / "file").touch()
    both, folder, system = sorted(
        faults(model, "prompts=a", "messages=[]", f"output.dir={tmp_path}/file"), reverse=True
    ) + faults(model, "prompts=a", "system=x")
    assert both.startswith("prompts, messages: only one")
    assert folder == f"output.dir={tmp_path}/file: is a file; give a folder"
    assert system.startswith("system: has no effect")
