"""`--multirun`: runs a task once for each combination of the swept values, each job in its own folder."""

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import product
from math import ceil, inf, isfinite, prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, RangeSweep
from hydra.errors import HydraException

from mindbatch.config.compose import Composition
from mindbatch.config.error_log import shown
from mindbatch.config.options import OptionFiles
from mindbatch.config.schema import TaskConfig, schema_keys, value_at
from mindbatch.config.settings import FOLDER_KEYS, OPTION, OUTPUT_FOLDER, json_value, key_of
from mindbatch.io.amounts import table
from mindbatch.io.children import command, spawn
from mindbatch.io.error_lines import text_override
from mindbatch.io.errors import EXIT_DONE, EXIT_FAILED, EXIT_UNFINISHED, ConfigError
from mindbatch.io.screen_text import printable, say, show
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.remote.address import is_remote
from mindbatch.tasks.runs.run_state import state_of

LONGEST_NAME = 120
MAX_JOBS = 1000
"""Limit of jobs in a sweep, because all are composed and checked before the first begins."""
OUTPUTS = (OUTPUT_FOLDER, "output.file", "output.upload", "report", "target.dir", "layout.dir")
"""Keys of the outputs of a job. No two jobs may write to the same path."""

TITLES = ("job", "ended", "seconds", "done", "failed", "tokens/s")
NUMBERS = (2, 3, 4, 5)

Compose = Callable[[list[str]], Composition]


@dataclass(frozen=True)
class SweepJob:
    """One combination of the swept values.

    name: `decoding.top_p=0.5,decoding.seed=1`. swept: the keys that have several values.
    overrides: all overrides of the job, with one value for each key.
    """

    name: str
    swept: frozenset[str]
    overrides: tuple[str, ...]
    folder: Path | None = None

    @property
    def folder_name(self) -> str:
        """The name of the job's folder: `name` without special characters, and a digest to keep it unique."""
        safe = re.sub(r"[^\w.,=+-]", "_", self.name)
        if safe == self.name and len(safe) <= LONGEST_NAME:
            return safe
        return f"{safe[:LONGEST_NAME]}-{blake2b(self.name.encode(), digest_size=4).hexdigest()}"


def jobs_of(overrides: Sequence[str], options: OptionFiles, listed_group: str = "") -> list[SweepJob]:
    """Makes a job for each combination of swept values: `a,b`, `choice()`, `range()` and `glob()`.

    listed_group: sweeps of its option and keys become one list of options instead of jobs.
    Raises ConfigError with a line for each sweep that cannot be expanded.
    """
    # The part of Hydra's loader of configurations that its glob() asks.
    loader: Any = SimpleNamespace(get_group_options=lambda group, results_filter: options.names(group))
    parser, errors = OverridesParser.create(config_loader=loader), list[str]()
    values = [_values(token, parser, errors) for token in overrides]
    if not any(len(choices) > 1 for choices in values):
        errors = errors or ["--multirun: no key has several values; write key=a,b or key='range(1,5)'"]
    if not errors and (count := prod(map(len, values))) > MAX_JOBS:
        errors = [f"--multirun: {count:,} jobs; at most {MAX_JOBS:,} are run by one command"]
    if errors:
        raise ConfigError(errors)
    by_key = [*zip(map(key_of, overrides), values, strict=True)]
    columns = [
        choices for key, choices in by_key if len(choices) > 1 and key.partition(".")[0] == listed_group
    ]
    if columns:
        columns += [choices for key, choices in by_key if len(choices) == 1 and key == listed_group]
        values = [choices for choices in values if choices not in columns]
        values.append([_listing(listed_group, columns, parser)])
    swept = [number for number, choices in enumerate(values) if len(choices) > 1]
    keys = frozenset(key_of(values[number][0]) for number in swept)
    return [
        SweepJob(",".join(chosen[number].lstrip("+") for number in swept), keys, chosen)
        for chosen in product(*values)
    ]


def _values(token: str, parser: OverridesParser, errors: list[str]) -> list[str]:
    """Expands an override to one for each value. A text that is not Hydra's grammar is one literal value."""
    if json_value(token) is not None:
        return [token]
    try:
        [override] = parser.parse_overrides([token])  # glob() needs what this alone gives it
        if not override.is_sweep_override():
            return [token]
        if not override.is_discrete_sweep():
            errors.append(f"{token}: an interval has no end of values; write range(), choice() or a,b")
            return [token]
        if _num_values(override) > MAX_JOBS:
            errors.append(f"{token}: stands for more than {MAX_JOBS:,} values, the most that are swept")
            return [token]
        key = token.partition("=")[0]
        values, texts = override.sweep_iterator(), override.sweep_string_iterator()
        tokens = [_override(key, *pair) for pair in zip(values, texts, strict=True)]
    except (HydraException, ValueError, RecursionError):
        return [token]
    if not tokens:
        errors.append(f"{token}: stands for no value")
    return tokens


def _num_values(override: Override) -> float:
    """Counts the values of a range, which may be infinite; 0 for other sweeps."""
    sweep = override.value()
    if not isinstance(sweep, RangeSweep):
        return 0
    if not sweep.step:
        return inf
    first, last = sweep.start or 0, sweep.stop or 0
    return max(0.0, ceil((last - first) / sweep.step) if isfinite((last - first) / sweep.step) else inf)


def _override(key: str, value: object, text: str) -> str:
    """Writes an override of one value: `text`, or a quoted form of an unquoted text that needs escapes."""
    return text_override(key, value) if isinstance(value, str) and "\\" in text else f"{key}={text}"


def _listing(group: str, columns: Sequence[Sequence[str]], parser: OverridesParser) -> str:
    """Makes the override that lists every combination for the group."""
    entries = []
    for chosen in product(*columns):
        parsed = [parser.parse_override(token) for token in chosen]
        names = [
            OPTION if override.key_or_group == group else override.key_or_group.partition(".")[2]
            for override in parsed
        ]
        entries.append({name: override.value() for name, override in zip(names, parsed, strict=True)})
    return f"{group}={json.dumps([_entry(entry) for entry in entries])}"


def _entry(entry: dict[str, Any]) -> Any:
    return entry[OPTION] if [*entry] == [OPTION] else entry


def with_run_folders(jobs: Sequence[SweepJob], schema: type[TaskConfig], compose: Compose) -> list[SweepJob]:
    """Gives each job its own folder below output.dir, if the task has that key and it is set."""
    if (
        OUTPUT_FOLDER not in schema_keys(schema).keys
        or OUTPUT_FOLDER in jobs[0].swept
        or schema.continues_run
    ):
        return [*jobs]
    base = compose([*jobs[0].overrides]).value(OUTPUT_FOLDER)
    if base is None or is_remote(base):  # no local folder, an error of every job
        return [*jobs]
    return [_in_folder(job, Path(base) / job.folder_name) for job in jobs]


def _in_folder(job: SweepJob, folder: Path) -> SweepJob:
    others = [token for token in job.overrides if key_of(token) not in FOLDER_KEYS]
    return replace(job, overrides=(*others, text_override(OUTPUT_FOLDER, str(folder))), folder=folder)


def run_jobs(
    jobs: Sequence[SweepJob], program: Callable[..., int], arguments: Sequence[str], compose: Compose
) -> int:
    """Runs the jobs one after the other, each in its own process, and prints a table of all.

    program: called in that process with `arguments` and the overrides of a job; returns its exit code.
    A job that fails does not end the sweep. Raises ConfigError with all errors before the first job begins.
    """
    outputs = dict[tuple[str, str], str]()
    errors = dict.fromkeys(line for job in jobs for line in _errors(job, compose, outputs))
    if errors:
        raise ConfigError(errors)
    rows = []
    for number, job in enumerate(jobs, 1):
        say(f"job {number} of {len(jobs)}: {job.name}")
        begun = time.monotonic()
        code = _run(program, [*arguments, *job.overrides])
        rows.append((job, code, time.monotonic() - begun))
    show(*table([TITLES, *(_cells(*row) for row in rows)], right=NUMBERS))
    return _code_of_all([code for _, code, _ in rows])


def _code_of_all(codes: Sequence[int]) -> int:
    """Returns the exit code of a sweep: unfinished if a job is, or was ended by a signal."""
    if any(code < 0 or code >= EXIT_UNFINISHED for code in codes):
        return EXIT_UNFINISHED
    return EXIT_FAILED if any(codes) else EXIT_DONE


def _errors(job: SweepJob, compose: Compose, outputs: dict[tuple[str, str], str]) -> Iterator[str]:
    """Yields the errors of a job's configuration. outputs: paths of earlier jobs; the job's are added."""
    composition = compose([*job.overrides])
    try:
        config = composition.finish()
    except ConfigError as error:
        yield from error.lines
        return
    for key in () if config.continues_run else OUTPUTS:
        path = value_at(config, key) if key in composition.set_keys else None
        if path is not None and (other := outputs.setdefault((key, path), job.name)) != job.name:
            yield (
                f"{key}={shown(path)}: {other} and {job.name} would both write it; "
                "a swept key in its name, as ${decoding.seed}, tells them apart"
            )


def _run(program: Callable[..., int], arguments: Sequence[str]) -> int:
    process = spawn(command(program, *arguments), stdin=subprocess.DEVNULL)
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGTERM)  # it tidies up; Ctrl-C does not reach it
        process.wait()
        raise


def _cells(job: SweepJob, code: int, seconds: float) -> list[str]:
    ended = "done" if code == EXIT_DONE else f"exit {code}"
    cells = [printable(job.name), ended, f"{seconds:,.1f}"]
    if job.folder is None or not RunFolder(job.folder).holds_a_run:
        return [*cells, "-", "-", "-"]
    state = state_of(job.folder)
    counts = (f"{count:,}" if count is not None else "-" for count in (state.done, state.failed))
    return [
        *cells,
        *counts,
        f"{state.tokens_per_second:,.1f}" if state.tokens_per_second is not None else "-",
    ]
