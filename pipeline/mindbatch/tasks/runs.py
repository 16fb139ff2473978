"""`mindbatch runs`: the runs below a folder, with their state, rows, speed and command."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from mindbatch.config.path_faults import folder_fault, settled
from mindbatch.config.schema import TaskConfig, option
from mindbatch.io.errors import EXIT_DONE
from mindbatch.io.screen_text import printable, show, show_json
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.tasks.formatting import table
from mindbatch.tasks.run_state import RunState, state_of

DEEPEST = 6
"""Folders are looked into this far: more would be a search of the whole disk."""

TITLES = ("status", "done", "failed", "rows", "tokens/s", "begun (UTC)", "run")
NUMBERS = (1, 2, 3, 4)

NO_RUNS = "no runs"


@dataclasses.dataclass
class RunsConfig(TaskConfig):
    """The keys of `mindbatch runs`."""

    positional: ClassVar[tuple[str, ...]] = ("folder",)

    folder: str = option(".", "folder below which the runs are", is_path=True)
    format: str = option("text", "text or json", choices=("text", "json"))
    verbose: bool = option(False, "show tracebacks")

    def settle_paths(self) -> list[str]:
        faults: list[str] = []
        self.folder = settled("folder", self.folder, folder_fault, faults) or self.folder
        return faults


def run(config: RunsConfig) -> int:
    """Prints the table of runs."""
    states = [state_of(folder) for folder in sorted(find_runs(Path(config.folder)))]
    if config.format == "json":
        show_json([as_json(state) for state in states])
    elif states:
        show("\n".join(as_lines(states)))
    else:
        show(f"{printable(config.folder)}: {NO_RUNS}")
    return EXIT_DONE


def find_runs(top: Path) -> Iterator[Path]:
    """The folders at and below `top` that hold a run; hidden ones, links and what is in a run are left out.

    What cannot be read is passed over.
    """
    for name, folders, _ in os.walk(top):
        folder = Path(name)
        if RunFolder(folder).holds_a_run:
            yield folder
            folders.clear()
        elif len(folder.relative_to(top).parts) >= DEEPEST:
            folders.clear()
        folders[:] = [each for each in folders if not each.startswith(".")]


def as_json(state: RunState) -> dict[str, Any]:
    """The state in plain JSON types, without a fault where there is none."""
    content = dataclasses.asdict(state)
    rows = {name: content.pop(name) for name in ("total", "done", "failed")}
    fault = content.pop("fault")
    content |= {"rows": rows, "command": list(state.command)}
    return content | ({"fault": fault} if fault else {})


def as_lines(states: Sequence[RunState]) -> list[str]:
    """A line for each run, and below it the command, which may be long, or what is wrong with the run."""
    heading, *rows = table([TITLES, *map(_cells, states)], right=NUMBERS)
    below = (printable(state.fault or shlex.join(state.command)) for state in states)
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
