"""Commands of MindBatch in processes of their own: what they print, and their last words where they fail."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from pathlib import Path

from mindbatch.io.children import run
from mindbatch.io.errors import EXIT_DONE

_LAST_LINES = 40


class CommandError(Exception):
    """A command that failed or has not ended. log: what it and its processes said last."""

    def __init__(self, reason: str, *log: str) -> None:
        super().__init__(reason)
        self.log = log


def said_by(
    *words: str, seconds: float = 900.0, logs: Path | None = None, allowed: Collection[int] = (EXIT_DONE,)
) -> str:
    """Runs a command and returns what it prints.

    logs: a folder below which its processes keep their logs. allowed: its exit codes.

    Raises:
        CommandError: it has another exit code, or has not ended after so many seconds.
    """
    try:
        done = run([sys.executable, "-I", "-m", "mindbatch", *words], seconds)
    except TimeoutError:
        raise CommandError(f"no end after {seconds:g} s", *last_lines(logs)) from None
    if done.code not in allowed:
        reason, *others = done.errors.strip().splitlines() or ["nothing was said"]
        raise CommandError(f"exit code {done.code}: {reason}", *others, *last_lines(logs))
    return done.output


def last_lines(folder: Path | None) -> Iterator[str]:
    """The end of each log below a folder, each line after the name of its file."""
    for path in sorted(folder.rglob("*.log")) if folder is not None else ():
        for line in path.read_text(errors="replace").splitlines()[-_LAST_LINES:]:
            yield f"{path.name}: {line}"
