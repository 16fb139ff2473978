"""Runs a program of the user's once for each rank: waits, tells who failed first, leaves nothing behind."""

import os
import select
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mindbatch.io import children
from mindbatch.io.errors import EXIT_DONE
from mindbatch.io.interrupts import interrupt_outcome
from mindbatch.io.screen_text import say
from mindbatch.launch.free_ports import HeldPorts
from mindbatch.launch.log_folder import made_folder
from mindbatch.launch.scripts.keeper import keep
from mindbatch.launch.supervisor import EndedProcess, Supervisor

_WITHOUT_US = "ModuleNotFoundError: No module named 'mindbatch'"
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
    drawn_port: HeldPorts | None = None


def run_ranks(job: ProgramRanks, script: str) -> int:
    """The exit code of the first process that failed, which ends the others; 0 when all have ended with 0."""
    made_folder(job.logs, key="")
    supervisor = Supervisor(job.logs, shown=job.shown)
    try:
        _start(job, supervisor)
        say(f"{_counted(len(job.ranks))} started; logs in {job.logs}", name=script)
        failed = _first_failure(supervisor, lambda: any(name in job.ranks for name in supervisor.names), None)
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
    say(f"{failed.name} ended with {failed.how}; the others are ended, too; its log is {log}", name=script)
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
    command = children.command(keep, *job.words)
    for name, variables in [*([job.helper] if job.helper else []), *job.ranks.items()]:
        supervisor.start(name, command, {**os.environ, **variables})


def _first_failure(
    supervisor: Supervisor, is_running: Callable[[], bool], seconds: float | None
) -> EndedProcess | None:
    """Waits while `is_running`, so long at most for each process that ends."""
    while is_running():
        if not _wait_for_an_end(supervisor, seconds):
            return None
        for ended in supervisor.ended():
            if ended.exit_status:
                return ended
    return None


def _wait_for_an_end(supervisor: Supervisor, seconds: float | None) -> bool:
    """Waits for a process to end, for ever if `seconds` is None; True if one has ended in time."""
    poll = select.poll()
    descriptors = []
    try:
        for name in supervisor.names:
            process = supervisor.process_id(name)
            if process is None:
                return True
            descriptors.append(os.pidfd_open(process))
            poll.register(descriptors[-1], select.POLLIN)
        return bool(poll.poll(None if seconds is None else 1000 * seconds))
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
