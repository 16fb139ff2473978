"""The README's examples: every block marked `<!-- tested -->` prints what the block after it says."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
README = (CHECKOUT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"<!-- tested -->\n```(bash|python)\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)
TIMES = re.compile(r"[\d.]+ s\b|\([\d,]+ tokens/s\)")


class Example(NamedTuple):
    language: str
    code: str
    output: str


EXAMPLES = [Example(*found) for found in BLOCK.findall(README)]
END = "-- the end of an example --\n"


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


def test_every_marked_block_is_understood() -> None:
    assert len(EXAMPLES) == README.count("<!-- tested -->") >= 5


def test_links_and_named_files_exist() -> None:
    for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (CHECKOUT / link).exists(), link
    for name in re.findall(r"`?(?:python )?((?:tools|benchmarks|makers|scripts)/\w+\.\w+)", README):
        assert (CHECKOUT / name).exists(), name


def test_keys_and_options_of_the_tables_exist() -> None:
    from mindbatch.config.schema import schema_keys
    from mindbatch.tasks.registry import TASKS

    keys = schema_keys(TASKS["generate"].schema).keys | schema_keys(TASKS["batch"].schema).keys
    guides = README + (CHECKOUT / "docs/batch.md").read_text(encoding="utf-8")
    for key in re.findall(r"\b((?:model|data|decoding|runtime|output|parallel)\.\w+)=", guides):
        assert key in keys or key == "runtime.cache_memry", key
    decoding = README.partition("**Decoding**")[2].partition("Options without effect")[0]
    named = {
        name for row in re.findall(r"^\| (`.*?) \|", decoding, re.M) for name in re.findall(r"`(\w+)`", row)
    }
    assert named == {key.partition(".")[2] for key in keys if key.startswith("decoding.")} - {
        "skip_special_tokens"
    }
