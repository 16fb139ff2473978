"""A command whose standard streams are closed or full, or whose folder is gone, says so or goes on."""

import base64
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from small_gpt2 import write_small_gpt2

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
        "mindbatch: prompts_file=-: standard input is empty; a prompt a line is needed\n",
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
    assert (code, err) == (1, f"{name}: standard output: cannot be written ({reason})\n")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_ends_is_no_message(unbuffered: str, tmp_path: Path) -> None:
    ended = f"({MINDBATCH} generate --help; echo $? >&2) | true"
    assert run(ended, tmp_path, PYTHONUNBUFFERED=unbuffered)[2] in ("1\n", "0\n")


def test_the_tools_end_as_the_command_does() -> None:
    for tool in {*TOOLS.glob("*.py")}:
        assert tool.read_text().rstrip().endswith("run_tool(main, NAME)")


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    code, _, err = run(f"rmdir {gone}; {MINDBATCH} rank-table check {TABLE}", gone)
    assert (code, err) == (2, "mindbatch: the current folder has been removed; change to another one\n")


@pytest.mark.parametrize("is_held", [False, True])
def test_output_of_anybody_is_discarded_meanwhile(tmp_path: Path, is_held: bool) -> None:
    script = """
import os, sys
from mindbatch.io.screen_text import discarded_output, hold_libraries_back
if HELD:
    hold_libraries_back()
print("before")
try:
    with discarded_output() as error:
        print("noise")
        print("noise", file=sys.stderr)
        os.system("echo noise; echo noise >&2")
        error.write("kept")
        raise ValueError
except ValueError:
    print("after")
    print(" after", file=sys.stderr)
"""
    (tmp_path / "script.py").write_text(script.replace("HELD", str(is_held)))
    assert run(f"{sys.executable} script.py", tmp_path) == (0, "before\nafter\n", "kept after\n")


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
