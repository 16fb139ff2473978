"""Entry of both scripts: arguments and environment to a job, errors and interrupts to exit codes."""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from mindbatch.io.errors import EXIT_DONE, EXIT_FAILED, EXIT_USAGE, ConfigError, MindBatchError
from mindbatch.io.interrupts import interrupt_outcome, signal_notes
from mindbatch.io.screen_text import say, show
from mindbatch.io.standard_streams import end_output, watch_streams
from mindbatch.launch.scripts.execute_order import ExecuteOrder
from mindbatch.launch.scripts.program_ranks import ProgramRanks, run_ranks

HELP = ("-h", "--help")


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


def run_script(script: Script, read_job: Callable[[list[str], Mapping[str, str]], ScriptJob]) -> NoReturn:
    """Runs the script with the arguments of this process, and ends it.

    read_job: the job that arguments and environment ask for. Raises MindBatchError with every fault.
    """
    watch_streams()
    signal_notes.install()
    try:
        code = _run(script, read_job, sys.argv[1:])
    except MindBatchError as error:
        say(*error.faults, name=script.name)
        code = error.exit_code
    except KeyboardInterrupt as interrupt:
        _, code = interrupt_outcome(type(interrupt))
    except BrokenPipeError:
        code = EXIT_FAILED
    end_output()
    _end_messages()
    sys.exit(code)


def _end_messages() -> None:
    """Points standard error at nothing if nobody reads it: the exit of the interpreter would fail."""
    try:
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _run(
    script: Script, read_job: Callable[[list[str], Mapping[str, str]], ScriptJob], arguments: list[str]
) -> int:
    if arguments and arguments[0] in HELP:
        show(script.usage)
        return EXIT_DONE
    if len(arguments) not in script.counts:
        show(script.usage, sys.stderr)
        *most, last = map(str, script.counts)
        allowed = f"{', '.join(most)} or {last}" if most else last
        say(f"{len(arguments)} arguments were given; it takes {allowed}", name=script.name)
        return EXIT_USAGE
    job = read_job(arguments, os.environ)
    say(*job.notes, name=script.name)
    if job.ranks is not None:
        return run_ranks(job.ranks, script.name)
    return _become(job)


def _become(job: ScriptJob) -> NoReturn:
    """Goes on as the program of ours, which gets the signals and whose exit code is the script's."""
    try:
        os.execvpe(job.order.program[0], job.order.words, {**os.environ, **job.variables})
    except OSError as error:
        raise ConfigError(f"{job.order.program[0]}: cannot be run ({error.strerror})") from error
