"""Runs a program of the user's once for each rank: waits, tells who failed first, leaves nothing behind."""

import math
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NoReturn

from mindbatch.io import children
from mindbatch.io.errors import EXIT_DONE, EXIT_UNFINISHED, EXIT_USAGE, ConfigError, MindBatchError
from mindbatch.io.interrupts import interrupt_outcome, signal_notes
from mindbatch.io.screen_text import end_output, say, show_page, watch_streams
from mindbatch.launch.free_ports import HeldPort
from mindbatch.launch.process_log import made_folder
from mindbatch.launch.scripts.execute_order import ExecuteOrder
from mindbatch.launch.scripts.reaper import run_and_reap
from mindbatch.launch.supervisor import EndedProcess, Supervisor

_WITHOUT_US = "ModuleNotFoundError: No module named 'mindbatch'"
_TICK_SECONDS = 0.05
_SECONDS_FOR_HELPERS = 10.0
"""So long a process beside the ranks may take to notice that these have ended."""


@dataclass(frozen=True)
class ProgramRanks:
    """The processes of a job on this machine.

    ranks: by name, which is that of the log, the variables of each rank's process. helper: name and variables
    of a process beside them, whose failure is the job's, too, and which ends when the ranks have.
    drawn_port: the port at which that one is to listen, where it was drawn; let go when the job is over.
    """

    words: Sequence[str]
    ranks: Mapping[str, Mapping[str, str]]
    logs: Path
    shown: bool
    helper: tuple[str, Mapping[str, str]] | None = None
    drawn_port: HeldPort | None = None


def run_ranks(job: ProgramRanks, script: str) -> int:
    """Runs the ranks; returns the exit code of the first that failed, which ends the others, or 0."""
    made_folder(job.logs, key="")
    supervisor = Supervisor(job.logs, shown=job.shown)
    try:
        _start(job, supervisor)
        say(f"{_counted(len(job.ranks))} started; logs in {job.logs}", name=script)
        failed = _first_failure(
            supervisor, lambda: any(name in job.ranks for name in supervisor.names), math.inf
        )
        if failed is None and job.helper is not None:
            failed = _first_failure(supervisor, lambda: bool(supervisor.names), _SECONDS_FOR_HELPERS)
    except KeyboardInterrupt as interrupt:
        supervisor.end()
        text, code = interrupt_outcome(type(interrupt))
        say(f"{text}: all processes are ended", name=script)
        return code
    finally:
        supervisor.end()
        if job.drawn_port is not None:
            job.drawn_port.close()
    if failed is None:
        return EXIT_DONE
    log = f"{job.logs / failed.name}.log"
    say(
        f"{failed.name} ended with {failed.exit_reason}; the others are ended, too; its log is {log}",
        name=script,
    )
    say(*(() if job.shown else failed.last_lines), name=failed.name)
    if any(_WITHOUT_US in line for line in failed.last_lines):
        say(
            f"{job.words[0]} has no MindBatch; set PYTHON={shlex.quote(sys.executable)}, which has",
            name=script,
        )
    return failed.exit_status


def _counted(number: int) -> str:
    return f"{number} process{'es' * (number > 1)}"


def _start(job: ProgramRanks, supervisor: Supervisor) -> None:
    command = children.command(run_and_reap, *job.words)
    for name, variables in [*([job.helper] if job.helper else []), *job.ranks.items()]:
        supervisor.start(name, command, {**os.environ, **variables})


def _first_failure(
    supervisor: Supervisor, is_running: Callable[[], bool], seconds: float
) -> EndedProcess | None:
    """Waits while `is_running`, so long at most."""
    deadline = time.monotonic() + seconds
    while is_running() and time.monotonic() < deadline:
        for ended in supervisor.ended():
            if ended.exit_status:
                return ended
        time.sleep(_TICK_SECONDS)
    return None


HELP = ("-h", "--help")
ARGUMENTS_ARE_RIGHT = 100
"""Exit code of a check of the arguments alone, which has printed nothing."""


@dataclass(frozen=True)
class Script:
    """A script's name, its page of help, and how many arguments it takes."""

    name: str
    usage: str
    counts: tuple[int, ...]


@dataclass(frozen=True)
class ScriptJob:
    """Program to run: one of ours, which starts its ranks itself, or another with its processes.

    variables: for the program of ours. notes: for the screen, beforehand.
    """

    order: ExecuteOrder
    ranks: ProgramRanks | None
    variables: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def run_script(
    script: Script,
    read_job: Callable[[list[str], Mapping[str, str]], ScriptJob],
    run_job: Callable[[ScriptJob], int] | None = None,
) -> NoReturn:
    """Runs the script with the arguments of this process, and ends it.

    read_job: the job that arguments and environment ask for. Raises MindBatchError with every error.
    run_job: runs it and returns the exit code; None runs its program.
    """
    watch_streams()
    signal_notes.install()
    try:
        code = _read_and_run(script, read_job, run_job or partial(_run, script), sys.argv[1:])
    except MindBatchError as error:
        say(*error.lines, name=script.name)
        code = error.exit_code
    except KeyboardInterrupt as interrupt:
        _, code = interrupt_outcome(type(interrupt))
    except BrokenPipeError:
        code = EXIT_UNFINISHED
    end_output()
    sys.exit(code)


def _read_and_run(
    script: Script,
    read_job: Callable[[list[str], Mapping[str, str]], ScriptJob],
    run_job: Callable[[ScriptJob], int],
    arguments: list[str],
) -> int:
    if arguments and arguments[0] in HELP:
        show_page(script.usage)
        return EXIT_DONE
    if len(arguments) not in script.counts:
        show_page(script.usage, sys.stderr)
        *others, last = map(str, script.counts)
        allowed = f"{', '.join(others)} or {last}" if others else last
        say(f"{len(arguments)} arguments were given; it takes {allowed}", name=script.name)
        return EXIT_USAGE
    return run_job(read_job(arguments, os.environ))


def _run(script: Script, job: ScriptJob) -> int:
    say(*job.notes, name=script.name)
    if job.ranks is not None:
        return run_ranks(job.ranks, script.name)
    return _exec_program(job)


def _exec_program(job: ScriptJob) -> NoReturn:
    """Replaces this process by our program, which gets the signals and gives the script's exit code."""
    try:
        os.execvpe(job.order.program[0], job.order.words, {**os.environ, **job.variables})
    except OSError as error:
        raise ConfigError(f"{job.order.program[0]}: cannot be run ({error.strerror})") from error
