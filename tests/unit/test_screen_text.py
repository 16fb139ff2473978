"""The gate to the terminal: nothing acts on it, sizes are bounded, closed or full streams are told."""

import ast
import base64
import contextlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mindbatch import cli
from mindbatch.io.error_lines import as_typed, as_written, shown
from mindbatch.io.errors import ConfigError
from mindbatch.io.screen_text import (
    LONGEST_LINE,
    MAX_LINES,
    TerminalText,
    data_output,
    printable,
    say,
    show,
    show_page,
)
from mindbatch.io.tool_parser import ToolParser
from small_gpt2 import write_small_gpt2

REPOSITORY = Path(__file__).parents[2]
SAFE_TOOLS = ("hccl_tools", "merge_hccl", "transform_ckpt", "transform_ckpt_lora", "write_digests")
# Modules that print on their own: the gate; generated text for `data_output`; rich tables of printable cells;
# children that write to a pipe.
PRINTS = {
    "io/screen_text.py": {"print"},
    "engine/streaming.py": {"print"},
    "tasks/generate/conversation.py": {"print"},
    "tasks/generate/task.py": {"print"},
    "tasks/replay.py": {"print"},
    "tasks/evaluate/compare.py": {"print"},
    "tasks/evaluate/task.py": {"print"},
    "tasks/launching.py": {"print"},
    "cli.py": {"print"},
    "launch/scripts/reaper.py": {"print"},  # to a log, in ASCII; it runs without the package
}

PRINTERS = ("print", "sys.stderr.write", "sys.stdout.write", "argparse.ArgumentParser")

NASTY = st.text(
    st.one_of(
        st.characters(),
        st.sampled_from("\x1b\x9b\n\r\t\x00\x7f\x85\u2028\u2029\u202a\u202e\u2066\u2069\ud800\udfff"),
    )
)


def as_said(*lines: object, name: str = "mindbatch") -> str:
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
    *lines, end = as_said(*faults).split("\n")
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
    lines = as_said(*(f"fault {number}" for number in range(20_000))).splitlines()
    assert len(lines) == MAX_LINES + 1
    assert lines[-1] == "mindbatch: ... and 19,950 more"


def test_a_page_keeps_its_lines_and_nothing_in_them_acts() -> None:
    file = io.StringIO()
    show_page("one\ntwo \x1b[31mred\u202e" + "x" * 10_000, file)
    one, two, end = file.getvalue().split("\n")
    assert (one, end) == ("one", "")
    assert two.startswith("two \\x1b[31mred\\u202exxx")
    assert len(two) < LONGEST_LINE + 60


def test_a_line_stays_one() -> None:
    file = io.StringIO()
    show("a\nforged", "b\r\u2028c", file=file)
    assert file.getvalue() == "a\\nforged\nb\\r\\u2028c\n"


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
    for tool in SAFE_TOOLS:
        assert not prints_of(REPOSITORY / f"tools/{tool}.py"), tool


MINDBATCH = f"{sys.executable} -m mindbatch"
TOOLS = Path(__file__).parents[2] / "tools"
TABLE = Path(__file__).parents[2] / "examples/rank_table.json"


def run(command: str, folder: Path, **variables: str) -> tuple[int, str, str]:
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"} | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("lost", ["<&-", "2>&-", "2> /dev/full", "<&- 2>&-"])
def test_input_and_messages_that_lead_nowhere_end_no_command(lost: str, tmp_path: Path) -> None:
    code, out, err = run(f"{MINDBATCH} rank-table check {TABLE} {lost}", tmp_path)
    assert (code, err) == (0, "")
    assert "2 ranks on 1 server" in out
    assert run(f"{MINDBATCH} nosuch {lost}", tmp_path)[0] == 2


def test_prompts_of_a_closed_input_are_none(tmp_path: Path) -> None:
    code, _, err = run(f"{MINDBATCH} generate model=tiny_gpt2 prompts_file=- <&-", tmp_path)
    assert (code, err) == (
        2,
        "mindbatch: prompts_file=-: standard input is empty; must have a prompt on each line\n",
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    ("lost", "reason"), [("> /dev/full", "No space left on device"), (">&-", "it is closed")]
)
@pytest.mark.parametrize(
    ("program", "name"),
    [
        (f"{MINDBATCH} --help", "mindbatch"),
        (f"{MINDBATCH} rank-table check {TABLE}", "mindbatch"),
        (f"{sys.executable} {TOOLS}/hccl_tools.py --help", "hccl_tools.py"),
        (f"{sys.executable} -m mindbatch.launch.scripts.msrun_launcher --help", "msrun_launcher.sh"),
    ],
)
def test_an_output_that_cannot_be_written_is_told(
    program: str, name: str, lost: str, reason: str, unbuffered: str, tmp_path: Path
) -> None:
    code, _, err = run(f"{program} {lost}", tmp_path, PYTHONUNBUFFERED=unbuffered)
    assert (code, err) == (75, f"{name}: standard output: cannot be written ({reason})\n")


def test_the_tools_end_as_the_command_does() -> None:
    for tool in {*TOOLS.glob("*.py")}:
        assert tool.read_text().rstrip().endswith("run_tool(main, NAME)")


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    code, _, err = run(f"rmdir {gone}; {MINDBATCH} rank-table check {TABLE}", gone)
    assert (code, err) == (2, "mindbatch: the current folder has been removed; change to another one\n")


def write_panicking(folder: Path) -> None:
    """A model whose tokenizer's library panics over every text."""
    write_small_gpt2(folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    charsmap = base64.b64encode((64).to_bytes(4, "little") + b"\xff" * 64).decode()
    tokenizer["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": charsmap}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def test_what_libraries_write_is_for_verbose(tmp_path: Path) -> None:
    write_panicking(tmp_path / "model")
    command = f"{MINDBATCH} generate model.checkpoint_name_or_path=model prompts=[a]"
    code, _, err = run(command, tmp_path)
    assert code == 1
    assert re.fullmatch(r"mindbatch: prompts\[0\]: the tokenizer cannot encode it: index out of .*\n", err)
    code, _, verbose = run(f"{command} --verbose", tmp_path)
    assert code == 1
    assert "panicked at" in verbose
    assert err.splitlines()[0] in verbose


VALUES = [
    (None, "null"),
    (True, "true"),
    ("a b", "'a b'"),
    (
        ("a b", "null", "Yes", "", "5", "x-1.y/z", "a: b", "你"),
        "[a b, 'null', 'Yes', '', '5', x-1.y/z, 'a: b', '你']",
    ),
    ({"a": None, "b c": {"true": [False, 1, 2.5]}}, "{a: null, b c: {'true': [false, 1, 2.5]}}"),
    ([], "[]"),
    ({}, "{}"),
]


@pytest.mark.parametrize(("value", "written"), VALUES)
def test_a_value_is_written_as_in_yaml(value: Any, written: str) -> None:
    assert as_written(value) == written
    assert yaml.safe_load(written) == (list(value) if isinstance(value, tuple) else value)


def test_a_text_that_was_typed_has_no_quotes() -> None:
    assert as_typed("a\n b") == "a b"
    assert as_typed(["a", None]) == "[a, null]"


def test_of_what_is_long_or_has_no_end_the_beginning_is_shown() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert shown("x" * 100) == f"'{'x' * 56}..."
    assert shown(endless) == "[" * 57 + "..."
    many: Any = 0
    for _ in range(9):  # 10^27 numbers, were all of them written
        many = [many] * 1000
    assert shown(many) == "[" * 9 + "0, " * 16 + "..."
    assert shown({str(number): many for number in range(3)}).startswith("{'0': [[[")


def flag_faults(capsys: pytest.CaptureFixture[str], *words: str, needs: bool = False) -> list[str]:
    parser = ToolParser.of_page("tool.py", "A page.")
    parser.add_argument("--rank_id", type=int, default=0)
    parser.add_argument("--scaling", type=float, required=needs)
    parser.add_argument("--format", choices=["ckpt", "safetensors"])
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(words)
    assert ended.value.code == 2
    return capsys.readouterr().err.splitlines()


def test_all_wrong_flags_of_a_tool_are_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert flag_faults(capsys, "--rank_id", "x", "--scalling=2", "7", "--scaling", "much") == [
        "tool.py: --rank_id 'x': must be a whole number",
        "tool.py: --scaling 'much': must be a number",
        "tool.py: --scalling: unknown flag; did you mean --scaling?",
    ]
    assert flag_faults(capsys, "--rank_id", "1", "more") == ["tool.py: 'more': one too many"]
    forged = flag_faults(capsys, "--x\x1b[31m\ntool.py: error: forged")
    assert forged == [r"tool.py: --x\x1b[31m\ntool.py: error: forged: unknown flag"]


def test_what_ends_the_reading_comes_last(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = flag_faults(capsys, "--rank_id", "x", "--format", "bin")
    assert first == "tool.py: --rank_id 'x': must be a whole number"
    assert second.startswith("tool.py: --format: invalid choice: 'bin'")
    assert flag_faults(capsys, "--rank_id", needs=True) == ["tool.py: --rank_id: expected one argument"]
