"""An evaluation writes over its own files only."""

from pathlib import Path
from unittest import mock

import pytest

from mindbatch.tasks.evaluate.schema import evaluation_folder_fault, page_fault
from mindbatch.tasks.evaluate.task import run

from .conftest import Configured


@pytest.mark.parametrize("name", ["results.json", "notes.txt"])
def test_a_folder_with_somebody_elses_files_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("precious")
    expected = f"has {name} in it but no evaluation; give a new or empty folder"
    assert evaluation_folder_fault(tmp_path) == expected


@pytest.mark.parametrize("names", [[], ["requests"], ["columns", "logs", "results.json"]])
def test_an_empty_folder_and_an_interrupted_evaluation_are_taken(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).touch()
    assert evaluation_folder_fault(tmp_path) is None
    assert evaluation_folder_fault(tmp_path / "new") is None


@pytest.mark.parametrize("content", ['{"id": 1}\n', "<!doctype html><title>ours?</title>"])
def test_a_file_that_is_no_report_is_not_replaced(tmp_path: Path, content: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(content)
    assert page_fault(path) == "is there already and is no report; give another name"
    assert page_fault(tmp_path / "new.html") is None


@pytest.mark.usefixtures("shadow")
def test_the_same_command_writes_its_own_files_again(configured: Configured, tmp_path: Path) -> None:
    config = configured()
    config.report = str(tmp_path / "report.html")
    with mock.patch("mindbatch.tasks.evaluate.task.save_config"):
        assert run(config) == 0
    assert page_fault(Path(config.report)) is None
    assert evaluation_folder_fault(Path(config.output.dir or "")) is None
