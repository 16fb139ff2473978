"""The examples of README.md and docs/: a block marked `<!-- tested -->` prints what the next block says."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from doc_pages import PAGES

TEXTS = [page.read_text(encoding="utf-8") for page in PAGES]
MARK = "<!-- tested -->"
BLOCK = re.compile(rf"{MARK}\n```(bash|python)\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)
TIMES = re.compile(r"[\d.]+ s\b|\([\d,]+ tokens/s\)")


class Example(NamedTuple):
    language: str
    code: str
    output: str


EXAMPLES = [Example(*found) for text in TEXTS for found in BLOCK.findall(text)]
END = "== the end of an example ==\n"


def run_at(folder: Path, command: list[str], given: str) -> str:
    """What the command prints, standard errors among it, in an empty folder."""
    here = folder / "here"
    here.mkdir()
    programs = str(Path(sys.executable).parent)
    result = subprocess.run(
        command,
        input=given.encode(),
        cwd=here,
        env={"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "HOME": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=300,
        check=False,
    )
    assert set(os.listdir(here)) <= {"prompts.txt", "questions.jsonl", "runs"}
    return result.stdout.decode()


def code_of(language: str) -> list[str]:
    return [example.code for example in EXAMPLES if example.language == language]


@pytest.fixture(scope="module")
def printed_by_python(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """By example; one process runs them all, each as a program of its own."""
    programs = code_of("python")
    runs = [f"exec({code!r}, {{'__name__': '__main__'}})\nprint({END!r}, end='')\n" for code in programs]
    printed = run_at(tmp_path_factory.mktemp("python"), [sys.executable, "-"], "".join(runs))
    return dict(zip(programs, printed.split(END), strict=False))


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.code.split("\n")[-2][:60])
def test_an_example_prints_what_it_says(
    example: Example, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if example.language == "python":
        printed = request.getfixturevalue("printed_by_python")[example.code]
    else:
        printed = run_at(tmp_path, ["bash"], example.code)
    assert TIMES.sub("", printed) == TIMES.sub("", example.output)


@pytest.mark.slow
def test_the_first_batch_is_followed_from_top_to_bottom(tmp_path: Path) -> None:
    """Its commands in one folder, one after the other, print what they print alone."""
    page = next(page for page in PAGES if page.name == "first_batch.md")
    examples = [Example(*found) for found in BLOCK.findall(page.read_text(encoding="utf-8"))]
    steps = [example for example in examples if example.language == "bash"]
    printed = run_at(tmp_path, ["bash"], "".join(f"{step.code}printf {END!r}\n" for step in steps))
    parts = TIMES.sub("", printed).split(END)
    assert parts == [*(TIMES.sub("", step.output) for step in steps), ""]


def test_every_marked_block_is_understood() -> None:
    assert len(EXAMPLES) == sum(text.count(f"\n{MARK}\n") for text in TEXTS) >= 12
