"""`mindbatch runs`: the runs below a folder, with their state, rows, speed and command."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindbatch.config.schema import RunsConfig
from mindbatch.errors import EXIT_DONE
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.screen_text import printable, show, show_json
from mindbatch.tasks.run_state import RunState, state_of

if TYPE_CHECKING:
    from rich.table import Table

DEEPEST = 6
"""Folders are looked into this far: more would be a search of the whole disk."""

WIDEST = 10_000
"""Columns of a page that no terminal shows: lines are not broken for other programs."""

NO_RUNS = "no runs"


def run(config: RunsConfig) -> int:
    """Prints the table of runs."""
    states = [state_of(folder) for folder in sorted(find_runs(Path(config.folder)))]
    if config.format == "json":
        show_json([as_json(state) for state in states])
    elif states:
        _print_table(as_table(states))
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


def as_table(states: Iterable[RunState]) -> Table:
    """The states as a table, a run a line."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for title in ("run", "status", "done", "failed", "rows", "tokens/s", "begun (UTC)", "command"):
        is_number = title in ("done", "failed", "rows", "tokens/s")
        is_long = title in ("run", "command")
        table.add_column(
            title, justify="right" if is_number else "left", overflow="fold", no_wrap=not is_long
        )
    for state in states:
        table.add_row(*map(Text, _cells(state)))  # as text: brackets in a name are no markup
    return table


def _cells(state: RunState) -> list[str]:
    speed = state.tokens_per_second
    command = state.fault or shlex.join(state.command)
    return [
        printable(state.folder),
        printable(state.status),
        *(f"{count:,}" if count is not None else "-" for count in (state.done, state.failed, state.total)),
        f"{speed:,.1f}" if speed is not None else "-",
        printable((state.created or "-")[:16].replace("T", " ")),
        printable(command),
    ]


def _print_table(table: Table) -> None:
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else WIDEST, highlight=False)
    with console.capture() as capture:
        console.print(table)
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))
