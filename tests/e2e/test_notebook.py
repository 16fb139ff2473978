"""The notebook runs, prints what is saved in it, and shows progress in one place of a cell."""

import os
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

from run_notebook import NOTEBOOK, executed

pytestmark = pytest.mark.slow

ANSI = re.compile(r"\x1b\[[\d;?]*[a-zA-Z]")
# What another machine, or another day, writes otherwise: times, speeds, bars.
VARIES = re.compile(r"[\d.]+ s\b|[\d,.]+ tokens/s|\d:\d\d:\d\d|[\d,.]+ +\d{4}-\d\d-\d\d \d\d:\d\d|━[━╸╺]*")


def shown_by(cell: Any) -> list[tuple[str, str]]:
    """Kind and text of each output, with the parts of a stream joined."""
    shown: list[tuple[str, str]] = []
    for output in cell.get("outputs", ()):
        kind = output.get("name", output["output_type"])
        text = output["text"] if "text" in output else output["data"]["text/plain"]
        if shown and shown[-1][0] == kind != "display_data":
            text = shown.pop()[1] + text
        shown.append((kind, text))
    return [(kind, " ".join(VARIES.sub("...", ANSI.sub("", text)).split())) for kind, text in shown]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("notebook")


@pytest.fixture(scope="module")
def notebook(folder: Path) -> Any:
    return executed(NOTEBOOK, folder)


def test_it_prints_what_is_saved_in_it(notebook: Any) -> None:
    saved = nbformat.read(NOTEBOOK, as_version=4)
    assert [(cell.id, shown_by(cell)) for cell in notebook.cells] == [
        (cell.id, shown_by(cell)) for cell in saved.cells
    ], "python docs/generator/run_notebook.py saves what it prints now"
    assert all(cell.outputs for cell in saved.cells if cell.cell_type == "code" and "print(" in cell.source)


def test_the_progress_of_a_call_is_one_output(notebook: Any) -> None:
    [cell] = [cell for cell in notebook.cells if "progress=True" in cell.source and cell.cell_type == "code"]
    drawn = [text for kind, text in shown_by(cell) if kind == "display_data"]
    assert drawn == ["generating ... 400/400 in ... ..."]
    [html] = [
        output["data"]["text/html"] for output in cell.outputs if output["output_type"] == "display_data"
    ]
    assert "400/400" in html


def test_a_command_in_a_cell_redraws_nothing(notebook: Any) -> None:
    """A notebook adds to the output of a command: what moves a cursor would be line after line."""
    commands = [cell for cell in notebook.cells if "!mindbatch" in cell.source]
    texts = [output["text"] for cell in commands for output in cell.outputs]
    assert len(commands) == 3
    assert not any("\x1b" in text or "loading" in text for text in texts)


def test_it_leaves_a_page_of_the_run(notebook: Any, folder: Path) -> None:
    assert "<h1>first: 4 of 5 rows done</h1>" in (folder / "run.html").read_text(encoding="utf-8")
    assert {name for name in os.listdir(folder) if not name.startswith(".")} == {
        "questions.jsonl", "runs", "run.html",
    }  # fmt: skip
