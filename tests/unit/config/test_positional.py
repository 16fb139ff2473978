"""Words on the command line that stand for keys."""

from pathlib import Path

import pytest

from mindbatch.config.compose import compose_task
from mindbatch.io.errors import ConfigError
from mindbatch.tasks.diff import DiffConfig
from mindbatch.tasks.registry import TASKS
from mindbatch.tasks.runs import RunsConfig


@pytest.fixture
def folders(tmp_path: Path) -> tuple[str, str]:
    """Two folders whose names would be something else to Hydra."""
    names = ("lr=0.1, [x]", "${y} 'z'")
    for name in names:
        (tmp_path / name).mkdir()
    return f"{tmp_path}/{names[0]}", f"{tmp_path}/{names[1]}"


def faults(task: str, *arguments: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        compose_task(TASKS[task], list(arguments)).finish()
    return list(caught.value.faults)


def test_words_are_taken_to_the_letter(folders: tuple[str, str]) -> None:
    config = compose_task(TASKS["diff"], [folders[0], "limit=3", folders[1]]).finish()
    assert isinstance(config, DiffConfig)
    assert (config.first, config.second, config.limit) == (*folders, 3)


def test_words_may_be_written_as_keys(tmp_path: Path) -> None:
    config = compose_task(TASKS["diff"], [str(tmp_path), f"second={tmp_path}"]).finish()
    assert isinstance(config, DiffConfig)
    assert config.first == config.second == str(tmp_path)


def test_a_word_may_be_left_out(tmp_path: Path) -> None:
    config = compose_task(TASKS["runs"], []).finish()
    assert isinstance(config, RunsConfig)
    assert config.folder == "."
    again = compose_task(TASKS["runs"], [str(tmp_path)]).finish()
    assert isinstance(again, RunsConfig)
    assert again.folder == str(tmp_path)


def test_wrong_words_are_named(tmp_path: Path) -> None:
    here = str(tmp_path)
    assert faults("diff", here, here, "more", "limt=1") == [
        "more: one too many; only first, second may be given without key=",
        "limt: unknown key; did you mean limit?",
    ]
    assert faults("runs", here, f"folder={here}") == [f"folder: given twice, as {here} and as folder="]
    assert faults("diff", here) == [
        "second: must be given: mindbatch diff FIRST SECOND, the folders of two runs"
    ]
    assert faults("diff")[0].startswith("first, second: must be given")
    (tmp_path / "run-a").mkdir()
    assert faults("diff", here, f"{here}/run-b") == [
        f"second={here}/run-b: no such folder; did you mean {here}/run-a?"
    ]


def test_other_tasks_take_no_words() -> None:
    assert faults("doctor", "runs") == ["runs: must be KEY=VALUE"]
