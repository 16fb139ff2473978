"""The command `mindbatch TASK [FLAGS] [KEY=VALUE ...]`: its flags, dispatch to a task, and the exit codes."""

import atexit
import errno
import gc
import io
import os
import signal
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from mindbatch.config.environment import configure_process, keep_files_private, prepare_environment
from mindbatch.config.options import OptionFiles
from mindbatch.config.paths import configs_folder, expand_home
from mindbatch.config.schema import Task, schema_keys
from mindbatch.io.error_lines import did_you_mean
from mindbatch.io.errors import EXIT_DONE, EXIT_UNFINISHED, EXIT_USAGE, ConfigError, MindBatchError, is_panic
from mindbatch.io.interrupts import DEFERRED_SIGNALS, interrupt_outcome, signal_notes
from mindbatch.io.screen_text import (
    data_output,
    end_output,
    hold_libraries_back,
    say,
    show,
    show_page,
    shown_traceback,
)
from mindbatch.tasks.registry import TASKS

if TYPE_CHECKING:
    from mindbatch.config.compose import Composition

SWITCHES = {
    "--help": "show the tasks, or with a task the keys used first; --help=all: every key",
    "--version": "show the version",
    "--verbose": "show the messages of MindSpore and MindFormers, tracebacks, requests to a server",
    "--watch": "runs: follow those that are running; as watch=true",
    "--print-config": "show the composed configuration and stop; as --cfg job",
    "--multirun": "run the task for every combination of key=a,b values, as a sweep of jobs",
}
VALUED_FLAGS = {
    "--config": ("FILE", "take values from a YAML file; the command line overrides it"),
    "--config-dir": ("DIR", "take more options, and groups, from DIR/model/*.yaml, DIR/decoding/*.yaml, ..."),
    "--config-name": (
        "NAME",
        "begin with DIR/NAME.yaml of --config-dir, whose defaults may have the task's own",
    ),
    "--cfg": (
        "WHAT",
        "show the composed configuration (job), Hydra's settings (hydra), or both (all), and stop",
    ),
}
_PATH_FLAGS = ("--config", "--config-dir")
_SHOWN_PARTS = ("job", "hydra", "all")
SHORT_FLAGS = {
    "-h": "--help",
    "-v": "--verbose",
    "-V": "--version",
    "-m": "--multirun",
    "-c": "--cfg",
    "-cd": "--config-dir",
    "-cn": "--config-name",
}

VERBOSE = "--verbose"
WATCH = "--watch"
_WATCH_KEY = "watch"


@dataclass
class CommandLine:
    """The parts of a command line; the task checks them."""

    task: str | None = None
    overrides: list[str] = field(default_factory=list)
    switches: set[str] = field(default_factory=set)
    values: dict[str, Any] = field(default_factory=dict)
    help_part: str = ""
    is_command: bool = False


def entry_point() -> NoReturn:
    """Runs the console script; a signal to end is an interrupt too, after which files are cleaned up."""
    configure_process()
    signal_notes.install()
    code = main(sys.argv[1:], is_command=True)
    end_output()
    signal.pthread_sigmask(signal.SIG_BLOCK, DEFERRED_SIGNALS)  # there is nothing left to end
    if signal_notes.came is not None:
        _exit(code)
    sys.exit(code)


def _exit(code: int) -> NoReturn:
    """Ends the process without finalizing the interpreter.

    Finalizing crashes where an import of a C extension was interrupted, waits for threads, and repeats a
    SIGINT that came within exec(), as a dataclass calls it.
    """
    atexit._run_exitfuncs()
    sys.stderr.flush()
    os._exit(code)


def main(arguments: list[str], *, is_command: bool = False) -> int:
    """Runs the command line `arguments` and returns the exit code; errors are printed, one line each.

    is_command: the process runs nothing else, so that its standard error belongs to this command.
    """
    line = CommandLine()
    _accept_every_character()
    try:
        line = parse_command_line(arguments)
        line.is_command = is_command
        code = _dispatch(line)
        sys.stdout.flush()  # a reader that has gone is noticed here, not at the interpreter's exit
        return code
    except BrokenPipeError:
        return EXIT_UNFINISHED
    except KeyboardInterrupt as interrupt:
        return _report_interrupt(type(interrupt))
    except Exception as error:
        if signal_notes.came is not None:
            return _report_interrupt(signal_notes.came)
        return _report_error(error, verbose=VERBOSE in line.switches)
    except BaseException as panic:
        if not is_panic(panic):
            raise
        return _report_error(panic, verbose=VERBOSE in line.switches)


def _accept_every_character() -> None:
    """Shows a character that the terminal's encoding lacks as ? instead of ending the run."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _report_interrupt(kind: type[KeyboardInterrupt]) -> int:
    text, code = interrupt_outcome(kind)
    say(text)
    return code


def _report_error(error: BaseException, verbose: bool) -> int:
    if verbose and not isinstance(error, ConfigError):
        import traceback

        shown_traceback(traceback.format_exception(error))
    if isinstance(error, MindBatchError):
        say(*error.lines)
        return error.exit_code
    text = " ".join(str(error).split())
    is_memory = isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM
    name = "out of memory" if is_memory else type(error).__name__
    hint = "" if verbose else " (run again with --verbose for the traceback)"
    say(f"{name}: {text}{hint}" if text else f"{name}{hint}")
    return EXIT_UNFINISHED


def _dispatch(line: CommandLine) -> int:
    if "--version" in line.switches:
        show(f"mindbatch {_version()}")
        return EXIT_DONE
    if line.task is None and not line.overrides:
        return _show_overview(is_requested="--help" in line.switches)
    task = _task(line)
    if "--help" in line.switches:
        options = OptionFiles(configs_folder(), line.values.get("--config-dir"))
        from mindbatch.tasks.help_pages import task_page

        flags = _flags()
        if not _can_watch(task):
            del flags[WATCH]
        show_page(task_page(task, options, flags, line.help_part))
        return EXIT_DONE
    return _run(task, line)


def _task(line: CommandLine) -> Task:
    names = ", ".join(TASKS)
    if line.task is None:
        raise ConfigError(f"{line.overrides[0]}: give a task before its keys: {names}")
    if line.task not in TASKS:
        near = did_you_mean(line.task, TASKS)
        raise ConfigError(f"{line.task}: no such task; there are {names}{near}")
    return TASKS[line.task]


def _run(task: Task, line: CommandLine) -> int:
    from mindbatch.config.compose import compose_task  # Hydra: not needed to show help

    _need_current_folder()
    overrides = list(line.overrides)
    if VERBOSE in line.switches:
        overrides.append(f"{task.schema.verbose_key}=true")
    if WATCH in line.switches:
        if not _can_watch(task):
            raise ConfigError(f"{WATCH}: mindbatch {task.name} has no such flag; mindbatch runs has it")
        overrides.append(f"{_WATCH_KEY}=true")
    files = [line.values.get(flag) for flag in ("--config", "--config-dir", "--config-name")]

    def composed(overrides: list[str]) -> "Composition":
        return compose_task(task, overrides, *files)

    if "--multirun" in line.switches:
        from mindbatch.tasks.sweep import jobs_of, run_jobs, with_run_folders  # few sweep

        jobs = jobs_of(overrides, OptionFiles(configs_folder(), files[1]), task.schema.listed_group)
        if len(jobs) > 1:
            jobs = with_run_folders(jobs, task.schema, composed)
            if part := _shown_part(line):
                for job in jobs:
                    say(f"job: {job.name}")
                    _show_configuration(composed([*job.overrides]), part)
                return EXIT_DONE
            flags = [f"{flag}={value}" for flag, value in line.values.items()]
            return run_jobs(jobs, run_job, [task.name, *flags], composed)
        overrides = [*jobs[0].overrides]  # all that was swept is listed
    composition = composed(overrides)
    if part := _shown_part(line):
        _show_configuration(composition, part)
        return EXIT_DONE
    config = composition.finish()
    if config.wants_verbose:
        line.switches.add(VERBOSE)
    if line.is_command and not config.wants_verbose:
        hold_libraries_back()
    prepare_environment(verbose=config.wants_verbose, num_threads=config.thread_count)
    if line.is_command and config.is_private:
        keep_files_private()
    say(*config.notes)
    run = task.run  # imports the task
    gc.freeze()
    gc.enable()
    if not config.is_launched:
        return run(config)
    from mindbatch.tasks.launching import run_in_job  # not needed where there is one process

    return run_in_job(config, run)


def run_job(*arguments: str) -> int:
    """Runs the command line of a job of a sweep, in a process of its own; returns the exit code."""
    sys.argv[:] = ["mindbatch", *arguments]  # the record of a run has its command
    signal_notes.install()
    return main([*arguments], is_command=True)


def _can_watch(task: Task) -> bool:
    return _WATCH_KEY in schema_keys(task.schema).keys


def _shown_part(line: CommandLine) -> str:
    """Returns the part of the configuration to show instead of a run; empty for a run."""
    return str(line.values.get("--cfg", "job" if "--print-config" in line.switches else ""))


def _show_configuration(composition: "Composition", part: str) -> None:
    composition.check()
    say(*composition.predicted.details)
    if part != "job":
        print(composition.hydra_yaml(), end="", file=data_output())
    if part != "hydra":
        print(composition.unresolved_yaml, end="", file=data_output())


def _need_current_folder() -> None:
    try:
        os.getcwd()
    except FileNotFoundError:
        raise ConfigError("the current folder has been removed; change to another one") from None


def _show_overview(is_requested: bool) -> int:
    """Shows the list of tasks; as an error if the command line is empty."""
    from mindbatch.tasks.help_pages import overview

    show_page(overview(_flags()), sys.stdout if is_requested else sys.stderr)
    return EXIT_DONE if is_requested else EXIT_USAGE


def _flags() -> dict[str, str]:
    valued = {f"{flag} {metavar}": meaning for flag, (metavar, meaning) in VALUED_FLAGS.items()}
    return valued | SWITCHES


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("mindbatch")
    except PackageNotFoundError:  # run from a source tree that was not installed
        return "(not installed)"


def parse_command_line(arguments: list[str]) -> CommandLine:
    """Splits `arguments` (without the program's name). Flags may be anywhere.

    Raises ConfigError naming every flag that does not exist or lacks its value.
    """
    line, errors = CommandLine(), []
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith("-"):
            _take_word(argument, line)
            continue
        flag, has_value, value = argument.partition("=")
        flag = SHORT_FLAGS.get(flag, flag)
        if flag in SWITCHES and (not has_value or flag == "--help"):
            line.switches.add(flag)
            line.help_part = value if flag == "--help" else line.help_part
        elif flag in VALUED_FLAGS:
            value = value if has_value else next(rest, "")
            errors += _take_value(flag, value, line)
        else:
            errors.append(_unknown_flag(argument, flag))
    if errors:
        raise ConfigError(errors)
    return line


def _take_value(flag: str, value: str, line: CommandLine) -> list[str]:
    """Sets the value of a flag; returns its errors."""
    if not value or value.startswith("--"):
        return [f"{flag}: needs a {VALUED_FLAGS[flag][0]}"]
    if flag == "--cfg" and value not in _SHOWN_PARTS:
        return [f"{flag} {value}: must be one of {', '.join(_SHOWN_PARTS)}"]
    try:
        line.values[flag] = expand_home(value) if flag in _PATH_FLAGS else value
    except ValueError as error:
        return [f"{flag}={value}: {error}"]
    return []


def _take_word(argument: str, line: CommandLine) -> None:
    if line.task is None and "=" not in argument:
        line.task = argument
    else:
        line.overrides.append(argument)


def _unknown_flag(argument: str, flag: str) -> str:
    if flag in SWITCHES:
        return f"{argument}: {flag} takes no value"
    near = did_you_mean(flag, [*SWITCHES, *VALUED_FLAGS], cutoff=0.8)
    meant = argument.lstrip("-") or "KEY"
    hint = f"; keys are given without dashes: {meant if '=' in meant else meant + '=VALUE'}"
    return f"{flag}: unknown flag{near or hint}"
