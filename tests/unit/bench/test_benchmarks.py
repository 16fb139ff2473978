"""tools/bench: documents name what exists, and every benchmark can be imported and started."""

import ast
import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.__main__ import HERE, MODULES, listing
from bench.peers.peer import SteppedPeer
from doc_pages import CHECKOUT, PAGES

TEXTS = [*PAGES, *HERE.rglob("*.py"), *HERE.rglob("*.md")]
PACKAGES = ("bench", "mindbatch")
OPTIONS = {"--help", "--rounds", "--threads"}
"""Those of every program, of `parser_of`."""


def wrong_words(text: str) -> list[str]:
    """Names and options of benchmarks in a text that do not exist."""
    wrong = []
    for name, rest in re.findall(r"tools/bench ([a-z_]\w*)([^`\n#]*)", text):
        if name not in MODULES:
            wrong.append(name)
            continue
        source = (HERE / f"{MODULES[name].replace('.', '/')}.py").read_text(encoding="utf-8")
        named = {*re.findall(r"(?<!\S)--[a-z-]+", rest)} - OPTIONS
        wrong += [f"{name} {option}" for option in sorted(named) if f'"{option}"' not in source]
    return wrong


@pytest.mark.parametrize("file", TEXTS, ids=lambda file: str(file.relative_to(CHECKOUT)))
def test_documents_name_benchmarks_and_options_that_exist(file: Path) -> None:
    assert wrong_words(file.read_text(encoding="utf-8")) == []


def test_a_wrong_command_is_found() -> None:
    text = "`python tools/bench peer --rows 1`, `tools/bench decode --rounds 1 --row 3`\n"
    assert wrong_words(text) == ["peer", "decode --row"]


def test_the_readme_says_which_question_each_answers() -> None:
    table = (HERE / "README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| .* \| `(\w+)`", table, re.MULTILINE)) == sorted(MODULES)


def test_the_listing_has_a_line_for_each() -> None:
    lines = dict(line.split(maxsplit=1) for line in listing().splitlines()[2:])
    assert list(lines) == list(MODULES)


@pytest.mark.parametrize("path", sorted(HERE.glob("*/*.py")), ids=lambda path: str(path.relative_to(HERE)))
def test_what_benchmarks_import_exists(path: Path) -> None:
    """Other engines need not be installed."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in PACKAGES:
            try:
                module = importlib.import_module(str(node.module))
            except ModuleNotFoundError as error:
                if str(error.name).split(".")[0] in PACKAGES:
                    raise
                continue
            for name in node.names:
                assert hasattr(module, name.name) or importlib.util.find_spec(f"{node.module}.{name.name}")


def test_every_module_that_is_run_has_a_main() -> None:
    named = {*MODULES.values()}
    for file in HERE.rglob("*.py"):
        named |= {*re.findall(r'"(\w+\.\w+_(?:worker|side|job))"', file.read_text(encoding="utf-8"))}
    assert len(named) > len(MODULES) + 10
    for module in named:
        tree = ast.parse((HERE / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
        assert "main" in [node.name for node in tree.body if isinstance(node, ast.FunctionDef)], module


class CountingPeer(SteppedPeer):
    def __init__(self) -> None:
        self.calls: list[object] = []

    def add(self, prompts: object) -> None:
        self.calls.append(prompts)

    def step(self) -> None:
        self.calls.append("step")

    def finish(self) -> None:
        self.calls.append("finish")


def test_a_stepped_peer_is_timed_behind_its_prompts() -> None:
    peer = CountingPeer()
    assert len(peer.decode(batch=2, context=3, steps=2)) == 2
    assert peer.calls == [[([0, 1, 2], 11), ([1, 2, 3], 11)], *["step"] * 5, "finish"]
    peer.calls.clear()
    assert len(peer.prefill(tokens=2, times=2)) == 2
    assert peer.calls == [[([0, 1], 1)], "finish"] * 2


@pytest.mark.slow
def test_a_benchmark_runs() -> None:
    command = [sys.executable, HERE, "memory", "--rows", "40", "80"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr  # memory of such small jobs says nothing
    assert len(re.findall(r"^\| +\d+ \| +[\d.]+ \|", done.stdout, re.MULTILINE)) == 2, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("meter", ["prompt_path", "model_counts"])
def test_a_meter_counts(meter: str) -> None:
    command = [sys.executable, CHECKOUT / f"tools/meters/{meter}.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert re.search(r"^[1-9]\d* modules$|^a batch of three rows: ", done.stdout, re.MULTILINE)
