"""A program of the user's, once for each rank: waited for, its failure told, and nothing of it left."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from command_line import heed_signals, wait_until
from ended_processes import is_gone
from mindbatch.launch.supervisor import EndedProcess
from rank_tables import plain_table, write_json

MODULES = "mindbatch.launch.scripts"
# Two processes that nobody waits for: one of the group, and one that has left it and its session.
LEAVES_TWO = """
echo $$ > shell.$RANK_ID
sleep 1000 & echo $! > child.$RANK_ID
setsid bash -c 'echo $$ > stranger.$RANK_ID; exec sleep 1000' &
while [ ! -e stranger.$RANK_ID ]; do sleep 0.01; done
"""

RANK_1_FAILS = "[ $RANK_ID = 0 ] || { until [ -e stranger.0 ]; do sleep 0.01; done; exit 7; }"
UNTIL_CLOSED = "until [ -e closed ]; do sleep 0.01; done"
TIDIES = "trap 'touch tidied.$RANK_ID; exit' TERM; touch ready.$RANK_ID; sleep 1000 & wait"


class Launcher:
    """Runs a script's module in a folder."""

    def __init__(self, here: Path) -> None:
        self.here = here
        self.running: list[subprocess.Popen[str]] = []
        table = plain_table(1, 2)
        table["server_list"][0]["server_id"] = "127.0.0.1"
        write_json(here / "table.json", table)

    def start(self, module: str, *arguments: str, **variables: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-I", "-m", f"{MODULES}.{module}", *arguments],
            cwd=self.here,
            env={"PATH": os.environ["PATH"], **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=heed_signals,
        )
        self.running.append(process)
        return process

    def on_two_ranks(self, text: str) -> "subprocess.Popen[str]":
        """Runs a script of bash on both."""
        return self.start("dist_gen", self.script("x.sh", text), "table.json", "[0,2]", "2")

    def script(self, name: str, text: str) -> str:
        (self.here / name).write_text(text)
        return f"bash {name}"

    def wait_for_both(self, process: "subprocess.Popen[str]") -> None:
        """Until their scripts have said that they are ready."""
        wait_until(lambda: all((self.here / f"ready.{rank}").exists() for rank in "01"), process)

    def number(self, name: str) -> int:
        return int((self.here / name).read_text())


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path)
    yield launcher
    for process in launcher.running:
        process.kill()
        process.communicate()


def finished(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    output, errors = process.communicate(timeout=60)
    return process.returncode, output, errors


NASTY = ["-x", 'a "b"', "$(touch made)", "`touch made`", ";touch made", "*", "two\nlines", "it's", "\\", "é"]


@pytest.mark.parametrize("module", ["dist_gen", pytest.param("msrun_launcher", marks=pytest.mark.slow)])
def test_arguments_arrive_as_they_are(launcher: Launcher, module: str) -> None:
    (launcher.here / "show.py").write_text(
        "import json, os, sys; json.dump(sys.argv[1:], open('seen.' + os.environ['RANK_ID'], 'w'))"
    )
    order = shlex.join([sys.executable, "show.py", *NASTY])
    further = ["table.json", "[0,2]", "2"] if module == "dist_gen" else ["1"]
    text = "-1 $(touch made)\n'two'"
    code, _, errors = finished(launcher.start(module, order, *further, INPUT_DATA=text))
    assert code == 0, errors
    assert json.loads((launcher.here / "seen.0").read_text()) == [*NASTY, "--input_data", text]
    assert not (launcher.here / "made").exists()


def test_output_goes_to_a_log_of_each_rank_and_is_shown_with_its_name(launcher: Launcher) -> None:
    code, output, errors = finished(launcher.on_two_ranks("echo $RANK_ID of $RANK_SIZE"))
    assert (code, output) == (0, "")
    first, *lines = errors.splitlines()
    assert first == f"run_dist_gen.sh: 2 processes started; logs in {launcher.here}/output/log"
    assert sorted(lines) == ["rank 0: 0 of 2", "rank 1: 1 of 2"]
    for rank in "01":
        assert (launcher.here / f"output/log/rank_{rank}.log").read_text() == f"{rank} of 2\n"


@pytest.mark.slow
def test_a_job_goes_on_when_nobody_reads_what_it_shows(launcher: Launcher) -> None:
    process = launcher.on_two_ranks(f"echo first; {UNTIL_CLOSED}; echo second; echo third")
    assert process.stderr is not None
    process.stderr.readline()
    process.stderr.close()
    (launcher.here / "closed").touch()
    assert process.wait(60) == 0
    for rank in "01":
        assert (launcher.here / f"output/log/rank_{rank}.log").read_text() == "first\nsecond\nthird\n"


def test_the_first_failure_is_the_exit_code_and_ends_the_others(launcher: Launcher) -> None:
    code, _, errors = finished(launcher.on_two_ranks(f"{LEAVES_TWO} {RANK_1_FAILS}; sleep 1000"))
    assert code == 7
    assert (
        f"run_dist_gen.sh: rank_1 ended with exit code 7; the others are ended, too; its log is "
        f"{launcher.here}/output/log/rank_1.log" in errors.splitlines()
    )
    assert nothing_is_left(launcher, ["shell.0", "child.1", "stranger.1"])


def test_a_python_without_mindbatch_is_named_with_one_that_has_it(launcher: Launcher) -> None:
    error = "ModuleNotFoundError: No module named 'mindbatch'"
    code, _, errors = finished(launcher.on_two_ranks(f'echo "{error}" >&2; exit 1'))
    assert code == 1
    advice = f"run_dist_gen.sh: bash has no MindBatch; set PYTHON={shlex.quote(sys.executable)}, which has"
    assert errors.splitlines()[-1] == advice


@pytest.mark.slow
def test_a_rank_that_ends_well_leaves_nothing_and_the_others_go_on(launcher: Launcher) -> None:
    code, _, errors = finished(launcher.on_two_ranks(f"{LEAVES_TWO} exit 0"))
    assert code == 0, errors
    assert nothing_is_left(launcher, [f"{name}.{rank}" for name in ("child", "stranger") for rank in "01"])


def test_a_killed_rank_ends_the_job(launcher: Launcher) -> None:
    process = launcher.on_two_ranks(f"{LEAVES_TWO} touch ready.$RANK_ID; sleep 1000")
    launcher.wait_for_both(process)
    os.kill(launcher.number("shell.1"), signal.SIGKILL)
    code, _, errors = finished(process)
    assert code == 128 + signal.SIGKILL
    assert "rank_1 ended with signal 9" in errors
    assert nothing_is_left(launcher)


def nothing_is_left(launcher: Launcher, names: list[str] | None = None) -> bool:
    every = [f"{name}.{rank}" for name in ("shell", "child", "stranger") for rank in "01"]
    return all(is_gone(launcher.number(name)) for name in names or every)


UNWILLING = "trap '' TERM"


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    ("number", "before", "code", "line"),
    [
        (signal.SIGTERM, UNWILLING, 143, "run_dist_gen.sh: terminated: all processes are ended"),
        (signal.SIGKILL, "", -9, None),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                (signal.SIGINT, "", 130, "run_dist_gen.sh: interrupted: all processes are ended"),
                (signal.SIGKILL, UNWILLING, -9, None),
                (signal.SIGHUP, "", -1, None),
            )
        ),
    ],
)
def test_nothing_outlives_a_launcher_that_is_ended(
    launcher: Launcher, number: int, before: str, code: int, line: str | None
) -> None:
    process = launcher.on_two_ranks(f"{before}\n{LEAVES_TWO} touch ready.$RANK_ID; while :; do sleep 1; done")
    launcher.wait_for_both(process)
    process.send_signal(number)
    assert process.wait(60) == code
    assert nothing_is_left(launcher)
    if line is not None:
        assert process.stderr is not None
        assert line in process.stderr.read().splitlines()


@pytest.mark.slow
def test_a_program_is_asked_to_end_before_it_is_killed(launcher: Launcher) -> None:
    process = launcher.on_two_ranks(TIDIES)
    launcher.wait_for_both(process)
    process.terminate()
    process.wait(60)
    assert all((launcher.here / f"tidied.{rank}").exists() for rank in "01")


@pytest.mark.slow
def test_the_scheduler_of_msrun_fails_the_job_too(launcher: Launcher) -> None:
    order = launcher.script("x.sh", "if [ $MS_ROLE = MS_SCHED ]; then echo no port; exit 5; fi; sleep 1000")
    code, _, errors = finished(launcher.start("msrun_launcher", order, "2"))
    assert code == 5
    assert errors.splitlines()[-2:] == [
        "msrun_launcher.sh: scheduler ended with exit code 5; the others are ended, too; its log is "
        f"{launcher.here}/output/msrun_log/scheduler.log",
        "scheduler: no port",
    ]


@pytest.mark.slow
def test_a_scheduler_that_does_not_end_is_ended(launcher: Launcher, tmp_path: Path) -> None:
    order = launcher.script("x.sh", "[ $MS_ROLE = MS_WORKER ] || { echo $$ > shell.0; sleep 1000; }")
    arguments = [
        "-c",
        "import sys; from mindbatch.launch.scripts import program_ranks, msrun_launcher\n"
        "program_ranks._SECONDS_FOR_HELPERS = 0.2; msrun_launcher.main()",
    ]
    process = subprocess.Popen([sys.executable, *arguments, order, "2"], cwd=launcher.here)
    launcher.running.append(process)
    assert process.wait(60) == 0
    assert is_gone(launcher.number("shell.0"))


def test_an_exit_status_is_as_a_shell_has_it() -> None:
    told = [EndedProcess("x", how, ()).exit_status for how in ("exit code 0", "exit code 7", "signal 9")]
    assert told == [0, 7, 137]


def test_wrong_usage_shows_the_usage(launcher: Launcher) -> None:
    code, output, errors = finished(launcher.start("msrun_launcher", "ls", "2", "8118"))
    assert (code, output) == (2, "")
    assert errors.startswith("usage: bash scripts/msrun_launcher.sh ")
    assert errors.splitlines()[-1] == "msrun_launcher.sh: 3 arguments were given; it takes 1, 2, 6 or 9"
    code, output, errors = finished(launcher.start("dist_gen", "--help"))
    assert (code, errors) == (0, "")
    assert output.startswith("usage: bash scripts/run_dist_gen.sh ")


def test_a_folder_of_logs_that_cannot_be_made_is_refused(launcher: Launcher) -> None:
    (launcher.here / "output").write_text("a file")
    code, _, errors = finished(launcher.on_two_ranks("ls"))
    assert code == 2
    assert errors == f"run_dist_gen.sh: {launcher.here}/output/log: cannot be made (Not a directory)\n"


@pytest.mark.slow
def test_modules_in_the_current_folder_are_not_run(launcher: Launcher) -> None:
    for name in ("json", "signal", "subprocess", "shlex", "mindbatch", "ctypes", "resource"):
        (launcher.here / f"{name}.py").write_text("open('planted', 'w'); raise SystemExit(9)")
    code, _, errors = finished(launcher.on_two_ranks("true"))
    assert code == 0, errors
    assert not (launcher.here / "planted").exists()
