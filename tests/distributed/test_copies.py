"""Scripts that launchers start as several copies, as users of MindFormers and MindNLP start theirs."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from ended_processes import is_gone, wait_for

CHECKOUT = Path(__file__).parents[2]
TABLE = CHECKOUT / "examples/rank_table.json"
SECONDS = 120
SCRIPT = """
import json, os, sys, time
from mindbatch import LLM, TextStreamer
from mindbatch.io.errors import MindBatchError

rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("RANK_ID", "0")))
prompt = "An increasing sequence: one,"

def say(value):
    with open(f"said_{rank}.jsonl", "a") as file:
        file.write(json.dumps(value) + chr(10))

llm = LLM("shipped:examples/tiny_gpt2", **json.loads(sys.argv[1]))
"""
CALLS = """
outputs = llm.generate([prompt, "two plus two is", ""], max_new_tokens=8, on_error="record")
say([output.error or output.outputs[0].text for output in outputs])
say("".join(event.text for event in llm.stream(prompt, max_new_tokens=8)))
llm.generate("one", max_new_tokens=4, streamer=TextStreamer(llm.tokenizer))
llm.close()
"""
SAID = [[" two, three, four, five,", " four.", "prompts[2]: the prompt is empty"], " two, three, four, five,"]
TWO = {"model_parallel": 2}
MINDBATCH = ("python", "-m", "mindbatch")
MPIRUN = ("mpirun", "--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else []))
LAUNCHERS = {
    "mpirun": (*MPIRUN, "-n", "2", "python", "{script}", "{options}"),
    "msrun": ("msrun", "--worker_num=2", "--local_worker_num=2", "--master_port=8118", "--join=True"),
    "msrun_launcher.sh": ("bash", f"{CHECKOUT}/scripts/msrun_launcher.sh", "{script} '{options}'", "2"),
    "run_dist_gen.sh": (
        *("bash", f"{CHECKOUT}/scripts/run_dist_gen.sh", "python {script} '{options}'"),
        *(str(TABLE), "[0,2]", "2"),
    ),
}


def environment(**variables: str) -> dict[str, str]:
    """With this Python first, as in an environment that is activated."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHON": sys.executable, **variables}


def written(folder: Path, calls: str) -> Path:
    script = folder / "run.py"
    script.write_text(SCRIPT + calls)
    return script


def by_table(folder: Path, calls: str, options: Mapping[str, int] = TWO) -> "list[tuple[int, str, str]]":
    """Starts two copies as MindFormers' own run_dist_gen.sh does: exit code, output and errors of each."""
    command = [sys.executable, str(written(folder, calls)), json.dumps(options)]
    running = []
    for rank in "01":
        told = {"RANK_ID": rank, "DEVICE_ID": rank, "RANK_SIZE": "2", "RANK_TABLE_FILE": str(TABLE)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(command, cwd=folder, env=environment(**told), text=True, **pipes)  # type: ignore[call-overload]
        running.append(process)
    ended = [process.communicate(timeout=SECONDS) for process in running]
    return [(process.returncode, *texts) for process, texts in zip(running, ended, strict=True)]


def launched(launcher: str, folder: Path, options: Mapping[str, int]) -> "subprocess.CompletedProcess[str]":
    if shutil.which(LAUNCHERS[launcher][0], path=environment()["PATH"]) is None:
        pytest.skip(f"no {launcher} here")
    script, given = written(folder, CALLS), json.dumps(options)
    words = [
        word.replace("{script}", str(script)).replace("{options}", given) for word in LAUNCHERS[launcher]
    ]
    command = [*words, str(script), given] if launcher == "msrun" else words
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def said(folder: Path) -> list[list[object]]:
    """What the ranks have said, in their order."""
    files = sorted(folder.glob("said_*.jsonl"))
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


@pytest.mark.slow
def test_every_copy_has_the_results_and_rank_0_streams(tmp_path: Path) -> None:
    [first, second] = by_table(tmp_path, CALLS)
    assert (first[0], second[0]) == (0, 0), first[2] + second[2]
    assert first[1].startswith("one")
    assert second[1] == ""
    assert said(tmp_path) == [SAID, SAID]


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_every_launcher(tmp_path: Path, launcher: str) -> None:
    launched(launcher, tmp_path, TWO)
    assert said(tmp_path) == [SAID, SAID]
    assert not [*tmp_path.glob("said_2*")]


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("options", [{"data_parallel": 2}, {"data_parallel": 2, "model_parallel": 2}, {}])
def test_replicas_and_copies_that_are_each_alone(tmp_path: Path, options: Mapping[str, int]) -> None:
    ended = by_table(tmp_path, CALLS, options)
    assert [each[0] for each in ended] == [0, 0], ended
    assert said(tmp_path) == [SAID, SAID]
    assert [bool(each[1]) for each in ended] == [True, not options]


@pytest.mark.slow
@pytest.mark.processes
def test_the_scheduler_of_msrun_is_no_copy(tmp_path: Path) -> None:
    done = launched("msrun", tmp_path, {})
    assert said(tmp_path) == [SAID, SAID]
    assert done.stdout.count(" plus") == 2  # word by word, and both write at once


CATCH = """
try:
{calls}
except MindBatchError as error:
    say(str(error))
    time.sleep(1)  # what the others do has nothing to do with this end
    sys.exit(3)
"""
CLOSED = "rank 0 has ended, or closed its model, before this call was over: "
DIFFERENT = {
    "llm.generate(prompt if rank else 'one')": (0, 3, "request 1 of this process is not that of rank 0: "),
    "if rank: llm.generate(prompt)": (0, 3, CLOSED),
    "if not rank: llm.generate(prompt, min_new_tokens=900, max_new_tokens=900)": (
        *(3, 0),
        "rank 1 has closed its model before rank 0 was done: ",
    ),
}


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("calls", DIFFERENT)
def test_copies_that_call_differently_fail(tmp_path: Path, calls: str) -> None:
    ended = by_table(tmp_path, CATCH.format(calls=f"    {calls}"))
    first, second, expected = DIFFERENT[calls]
    assert [each[0] for each in ended] == [first, second], ended
    assert [text for texts in said(tmp_path) for text in texts] == [
        f"{expected}under a launcher every process must make the same calls, in the same order"
    ]


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("rank", [0, 1])
def test_a_copy_that_is_killed_ends_the_others(tmp_path: Path, rank: int) -> None:
    calls = f"    if rank == {rank}: os.kill(os.getpid(), 9)\n    llm.generate(prompt, max_new_tokens=99)"
    ended = by_table(tmp_path, CATCH.format(calls=calls))
    assert [each[0] for each in ended] == ([-9, 3] if rank == 0 else [3, -9])
    [[text]] = said(tmp_path)
    assert str(text).startswith(CLOSED if rank == 0 else "rank 1 ")


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("launcher", ["mpirun", "msrun"])
def test_a_launcher_that_is_killed_takes_its_copies_along(tmp_path: Path, launcher: str) -> None:
    if shutil.which(launcher, path=environment()["PATH"]) is None:
        pytest.skip(f"no {launcher} here")
    script = written(tmp_path, "say(os.getpid())\nwhile True: llm.generate(prompt, max_new_tokens=50)\n")
    [*words, _, _] = LAUNCHERS[launcher] if launcher == "mpirun" else (*LAUNCHERS[launcher], "", "")
    running = subprocess.Popen([*words, str(script), json.dumps(TWO)], cwd=tmp_path, env=environment())
    wait_for(lambda: len(said(tmp_path)) == 2 and all(said(tmp_path)))
    copies = [int(str(pid)) for [pid] in said(tmp_path)]
    running.kill()
    running.wait()
    wait_for(lambda: all(map(is_gone, copies)))


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("launcher", ["mpirun", "msrun"])
def test_copies_of_the_command_need_no_key(tmp_path: Path, launcher: str) -> None:
    if shutil.which(launcher, path=environment()["PATH"]) is None:
        pytest.skip(f"no {launcher} here")
    words: Sequence[str] = ("generate", "model=tiny_gpt2", "prompts=one", "decoding.max_new_tokens=6")
    start = (*MPIRUN, "-n", "2", "mindbatch") if launcher == "mpirun" else (*LAUNCHERS["msrun"], *MINDBATCH)
    command = [*start, *words, "parallel.model_parallel=2"]
    variables = environment()
    variables.pop("MINDBATCH_JOB_KEY", None)
    done = subprocess.run(
        command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines.count("one plus four is five.") == 1
    assert launcher == "msrun" or len(lines) == 1
