"""The gate to the terminal: nothing acts on it, a fault is a line, sizes are bounded, and all go through."""

import ast
import contextlib
import io
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindbatch import cli
from mindbatch.io.errors import ConfigError
from mindbatch.io.screen_text import LONGEST_LINE, MOST_LINES, TerminalText, data_output, printable, say, show
from mindbatch.io.tool_parser import ToolParser

REPOSITORY = Path(__file__).parents[2]
TOOLS = ("hccl_tools", "merge_hccl", "transform_ckpt", "transform_ckpt_lora", "write_digests")
# Modules that print on their own: the gate; generated text for `data_output`; rich tables of printable cells;
# children that write to a pipe.
PRINTS = {
    "io/screen_text.py": {"print"},
    "streaming.py": {"print"},
    "tasks/generate/conversation.py": {"print"},
    "tasks/generate/task.py": {"print"},
    "tasks/replay.py": {"print"},
    "tasks/evaluate/compare.py": {"print"},
    "tasks/evaluate/harness.py": {"print"},
    "tasks/evaluate/task.py": {"print"},
    "tasks/launching.py": {"print"},
    "cli.py": {"print"},
    "launch/scripts/keeper.py": {"print"},  # to a log, in ASCII; it runs without the package
}

PRINTERS = ("print", "sys.stderr.write", "sys.stdout.write", "argparse.ArgumentParser")

NASTY = st.text(
    st.one_of(
        st.characters(),
        st.sampled_from("\x1b\x9b\n\r\t\x00\x7f\x85\u2028\u2029\u202a\u202e\u2066\u2069\ud800\udfff"),
    )
)


def said(*lines: object, name: str = "mindbatch") -> str:
    with contextlib.redirect_stderr(io.StringIO()) as shown:
        say(*lines, name=name)
    return shown.getvalue()


def run_failing(error: Exception, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    def task(config: Any) -> int:
        raise error

    monkeypatch.setattr("mindbatch.tasks.doctor.run", task)
    cli.main(["doctor", *words])


@given(st.lists(NASTY, max_size=5))
def test_whatever_a_fault_holds_it_is_one_printable_line(faults: list[str]) -> None:
    *lines, end = said(*faults).split("\n")
    assert end == ""
    assert len(lines) == len(faults)
    assert all(line.isprintable() and line.startswith("mindbatch: ") for line in lines)


@given(NASTY.filter(bool), st.integers(1, 10**6), st.integers(1, 200))
def test_a_line_is_bounded(text: str, times: int, longest: int) -> None:
    repeated = text * (times // len(text) + 1)
    assert len(printable(repeated, longest)) <= longest + 60


def test_of_a_long_line_the_middle_is_left_out() -> None:
    shown = printable("a" * 5_000_000 + "z")
    assert shown == f"{'a' * 1000} ... (5,000,001 characters in all) ... {'a' * 999}z"


def test_many_faults_are_counted() -> None:
    lines = said(*(f"fault {number}" for number in range(20_000))).splitlines()
    assert len(lines) == MOST_LINES + 1
    assert lines[-1] == "mindbatch: ... and 19,950 more"


def test_a_page_keeps_its_lines_and_nothing_in_them_acts() -> None:
    file = io.StringIO()
    show("one\ntwo \x1b[31mred\u202e" + "x" * 10_000, file)
    one, two, end = file.getvalue().split("\n")
    assert (one, end) == ("one", "")
    assert two.startswith("two \\x1b[31mred\\u202exxx")
    assert len(two) < LONGEST_LINE + 60


@pytest.mark.parametrize("error", [ConfigError, RuntimeError])
@pytest.mark.parametrize("flags", [(), ("--verbose",)])
def test_no_exception_forges_a_line(
    error: type[Exception],
    flags: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_failing(error("x\x1b[2J\nmindbatch: 3 of 3 rows done\x9b" + "y" * 10**6), monkeypatch, *flags)
    lines = capsys.readouterr().err.split("\n")[:-1]
    assert all(line.isprintable() and len(line) < LONGEST_LINE + 100 for line in lines)
    assert len([line for line in lines if line.startswith("mindbatch: ")]) == 1


def test_keys_and_values_of_the_command_line_act_on_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["model.a\x1b[31m=1", "prompts_file=no\x9bfile\nmindbatch: done", "bad\x1b]0;key=\x07"]
    assert cli.main(["generate", *words, "--config", "no\x1bfile.yaml"]) == 2
    shown = capsys.readouterr().err
    assert shown
    assert all(line.startswith("mindbatch: ") and line.isprintable() for line in shown.splitlines())
    assert "mindbatch: done" not in shown.splitlines()


def test_on_a_terminal_generated_text_is_text() -> None:
    file = io.StringIO()
    TerminalText(file).write("line\n\ttab \x1b[2J\x9b\x7f\r\u202e\u2028\ud800 \u00e9\u6f22")
    text = "line\n\ttab \\u001b[2J\\u009b\\u007f\\u000d\\u202e\\u2028\\ud800 \u00e9\u6f22"
    assert file.getvalue() == text


def test_a_file_or_pipe_gets_generated_text_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert data_output() is sys.stdout
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert isinstance(data_output(), TerminalText)


def test_a_tool_shows_wrong_flags_safely(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        ToolParser(prog="tool.py").parse_args(["--x\x1b[31m\ntool.py: error: forged"])
    lines = capsys.readouterr().err.splitlines()
    assert lines == [r"tool.py: --x\x1b[31m\ntool.py: error: forged: unknown flag"]


def prints_of(module: Path) -> set[str]:
    """How a module prints without the gate."""
    found: set[str] = set()
    text = module.read_text()
    if not any(f"{name}(" in text for name in PRINTERS):
        return found
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in PRINTERS:
                found.add(called)
    return found


def test_nobody_prints_past_the_gate() -> None:
    package = REPOSITORY / "pipeline/mindbatch"
    printing = {module.relative_to(package).as_posix(): prints_of(module) for module in package.rglob("*.py")}
    assert {name: found for name, found in printing.items() if found} == PRINTS
    for tool in TOOLS:
        assert not prints_of(REPOSITORY / f"tools/{tool}.py"), tool
