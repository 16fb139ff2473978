"""A list of options for a group makes variants; words that stand for keys."""

from pathlib import Path

import pytest

from mindbatch.config.compose import Composition, compose_task
from mindbatch.config.options import OptionFiles
from mindbatch.config.paths import configs_folder
from mindbatch.config.schema import TaskConfig
from mindbatch.io.errors import ConfigError
from mindbatch.tasks.evaluate.compare_schema import CompareConfig
from mindbatch.tasks.help_pages import task_page
from mindbatch.tasks.registry import TASKS
from task_configs import config_of, faults_of_task

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
    return config_of("compare", *arguments, file=file, folder=own)


def faults(*arguments: str) -> list[str]:
    return faults_of_task("compare", *arguments)


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


@pytest.mark.parametrize(
    ("written", "names"),
    [
        ("decoding=[greedy,sampling]", ["greedy", "sampling"]),
        ("decoding=greedy,sampling", ["greedy", "sampling"]),
        ("decoding=sampling", ["sampling"]),
        ("decoding=[greedy] decoding=[sampling]", ["sampling"]),
    ],
)
def test_the_last_list_counts_and_needs_no_brackets(given: list[str], written: str, names: list[str]) -> None:
    assert list(composed(*given, *written.split()).variants) == names


def test_without_a_list_there_is_that_of_the_schema(given: list[str]) -> None:
    assert tuple(composed(*given).variants) == CompareConfig.listed_options


def test_every_shipped_option_can_be_listed() -> None:
    names = OPTIONS.names("decoding")
    composition = compose_task(TASKS["compare"], [f"decoding=[{','.join(names)}]"])
    assert composition.log.lines == []
    assert list(composition.variants) == names


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
        config_of("generate", *given, "decoding=[greedy]")
    assert config_of("generate", *given, "decoding=greedy").variants == {}


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
    assert system.startswith("system=x: has no effect")


@pytest.fixture
def folders(tmp_path: Path) -> tuple[str, str]:
    """Two folders whose names would be something else to Hydra."""
    names = ("lr=0.1, [x]", "${y} 'z'")
    for name in names:
        (tmp_path / name).mkdir()
    return f"{tmp_path}/{names[0]}", f"{tmp_path}/{names[1]}"


def test_words_are_taken_to_the_letter(folders: tuple[str, str]) -> None:
    config = config_of("diff", folders[0], "limit=3", folders[1])
    assert (config.first, config.second, config.limit) == (*folders, 3)


def test_words_may_be_written_as_keys(tmp_path: Path) -> None:
    config = config_of("diff", str(tmp_path), f"second={tmp_path}")
    assert config.first == config.second == str(tmp_path)


def test_a_word_may_be_left_out(tmp_path: Path) -> None:
    config = config_of("runs")
    assert config.folder == "."
    again = config_of("runs", str(tmp_path))
    assert again.folder == str(tmp_path)


def test_wrong_words_are_named(tmp_path: Path) -> None:
    here = str(tmp_path)
    assert faults_of_task("diff", here, here, "more", "limt=1") == [
        "more: one too many; only first, second may be given without key=",
        "limt: unknown key; did you mean limit?",
    ]
    assert faults_of_task("runs", here, f"folder={here}") == [
        f"folder: given twice, as {here} and as folder="
    ]
    assert faults_of_task("diff", here) == [
        "second: must be given: mindbatch diff FIRST SECOND, the folders of two runs"
    ]
    assert faults_of_task("diff")[0].startswith("first, second: must be given")
    (tmp_path / "run-a").mkdir()
    assert faults_of_task("diff", here, f"{here}/run-b") == [
        f"second={here}/run-b: no such folder; did you mean {here}/run-a?"
    ]


def test_other_tasks_take_no_words() -> None:
    assert faults_of_task("doctor", "runs") == ["runs: must be KEY=VALUE"]
