"""`mindbatch runs`: lists the runs below a folder, follows those that are running, or makes a page of one."""

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mindbatch.io.amounts import table
from mindbatch.io.errors import EXIT_DONE
from mindbatch.io.screen_text import printable, say, show, show_json
from mindbatch.io.storage import write_whole
from mindbatch.tasks.runs.run_state import RunState, find_runs, state_of
from mindbatch.tasks.runs.schema import RunsConfig

TITLES = ("status", "done", "failed", "rows", "tokens/s", "begun (UTC)", "run")
NUMBERS = (1, 2, 3, 4)
NO_RUNS = "no runs"
NOTHING_RUNS = "no run is running"


def run(config: RunsConfig) -> int:
    folder = Path(config.folder)
    if config.watch:
        from mindbatch.tasks.runs.watch import watch_runs  # rich and the engine's words: only this needs them

        folders = watch_runs(folder)
        missing = NOTHING_RUNS
    else:
        folders = sorted(find_runs(folder))
        missing = NO_RUNS
    states = [*map(state_of, folders)]
    if config.format == "json":
        show_json([as_json(state) for state in states])
    elif states:
        show(*as_lines(states))
    else:
        show(f"{printable(config.folder)}: {missing}")
    if config.report is not None:
        from mindbatch.tasks.runs.report import report_page  # only a page pays for the templates

        write_whole(Path(config.report), report_page(states[0]).encode())
        say(f"written {config.report}")
    return EXIT_DONE


def as_json(state: RunState) -> dict[str, Any]:
    """Converts the state to JSON types, without `error` if there is none."""
    content = dataclasses.asdict(state)
    rows = {name: content.pop(name) for name in ("total", "done", "failed")}
    error = content.pop("error")
    content |= {"rows": rows, "command": list(state.command)}
    return content | ({"error": error} if error else {})


def as_lines(states: Sequence[RunState]) -> list[str]:
    """Makes a line for each run, and below it its command, or the error of a damaged run."""
    heading, *rows = table([TITLES, *map(_cells, states)], right=NUMBERS)
    below = (printable(state.error or shlex.join(state.command)) for state in states)
    return [heading, *(line for row, text in zip(rows, below, strict=True) for line in (row, f"    {text}"))]


def _cells(state: RunState) -> list[str]:
    speed = state.tokens_per_second
    return [
        printable(state.status),
        *(f"{count:,}" if count is not None else "-" for count in (state.done, state.failed, state.total)),
        f"{speed:,.1f}" if speed is not None else "-",
        printable((state.created or "-")[:16].replace("T", " ")),
        printable(state.folder),
    ]
