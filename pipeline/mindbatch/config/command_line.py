"""The command line: `mindbatch TASK [FLAGS] [KEY=VALUE ...]`."""

from dataclasses import dataclass, field
from pathlib import Path

from mindbatch.config.paths import expand_home
from mindbatch.errors import ConfigError
from mindbatch.fault_lines import did_you_mean

SWITCHES = {
    "--help": "show the tasks, or with a task its keys",
    "--version": "show the version",
    "--verbose": "show the messages of MindSpore and MindFormers, and tracebacks",
    "--print-config": "show the composed configuration and stop",
}
PATH_FLAGS = {
    "--config": ("FILE", "take values from a YAML file; the command line goes before it"),
    "--config-dir": ("DIR", "take more options from DIR/model/*.yaml, DIR/decoding/*.yaml, ..."),
}
_SHORT = {"-h": "--help", "-v": "--verbose", "-V": "--version"}


@dataclass
class CommandLine:
    """The parts of a command line; what they mean together is for the task to say."""

    task: str | None = None
    overrides: list[str] = field(default_factory=list)
    switches: set[str] = field(default_factory=set)
    paths: dict[str, Path] = field(default_factory=dict)


def parse_command_line(arguments: list[str]) -> CommandLine:
    """Splits `arguments` (without the program's name). Flags may stand anywhere.

    Raises ConfigError naming every flag that does not exist or lacks its value.
    """
    line, faults = CommandLine(), []
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith("-"):
            _take_word(argument, line)
            continue
        flag, has_value, value = argument.partition("=")
        flag = _SHORT.get(flag, flag)
        if flag in SWITCHES and not has_value:
            line.switches.add(flag)
        elif flag in PATH_FLAGS:
            value = value if has_value else next(rest, "")
            if not value or value.startswith("--"):
                faults.append(f"{flag}: needs a {PATH_FLAGS[flag][0]}")
                continue
            try:
                line.paths[flag] = expand_home(value)
            except ValueError as error:
                faults.append(f"{flag}={value}: {error}")
        else:
            faults.append(_unknown_flag(argument, flag))
    if faults:
        raise ConfigError(faults)
    return line


def _take_word(argument: str, line: CommandLine) -> None:
    if line.task is None and "=" not in argument:
        line.task = argument
    else:
        line.overrides.append(argument)


def _unknown_flag(argument: str, flag: str) -> str:
    if flag in SWITCHES:
        return f"{argument}: {flag} takes no value"
    near = did_you_mean(flag, [*SWITCHES, *PATH_FLAGS], cutoff=0.8)
    hint = near or "; keys are given as key=value, without dashes"
    return f"{flag}: unknown flag{hint}"
