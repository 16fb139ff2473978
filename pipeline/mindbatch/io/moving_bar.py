"""Lines that move on a terminal and then disappear: a bar as rows end, a line before the first result."""

import sys
from collections.abc import Iterable, Iterator
from typing import TextIO, TypeVar

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from mindbatch.io.closing import Closing

REDRAWS_PER_SECOND = 5.0


class MovingBar(Progress):
    """Progress bar that printed lines do not break.

    What is printed meanwhile to standard error appears above it, and to standard output if that is a
    terminal. Without a terminal, or with disable=True, nothing is drawn.
    """

    def __init__(self, description: str, console: Console, *, disable: bool = False) -> None:
        self._status = ""
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("in"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            refresh_per_second=REDRAWS_PER_SECOND,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),
            disable=disable,
        )
        self._rows = self.add_task(description, total=None, note="")

    def set(self, ended: int, total: int, note: str, status: str = "") -> None:
        """Sets the bar, with `note` at its right and `status` below it; the next refresh draws it."""
        self._status = status
        self.update(self._rows, completed=ended, total=total, note=note)

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self._status:
            yield Text(self._status, style="dim")


Item = TypeVar("Item")

CLEARED = "\r\x1b[K"


class LoadingLine(Closing):
    """Shows the latest text it was called with on one line of a terminal, until it is closed.

    forced: shows it on other files too.
    """

    def __init__(self, *, shown: bool = True, file: TextIO | None = None, forced: bool = False) -> None:
        self._file = file or sys.stderr
        self._shown = shown and (forced or self._file.isatty())
        self._is_drawn = False

    def __call__(self, text: str) -> None:
        if self._shown:
            self._is_drawn = True
            self._file.write(CLEARED + text)
            self._file.flush()

    def close(self) -> None:
        """Clears the line; nothing is shown from now on."""
        if self._is_drawn:
            self("")
        self._shown = False

    def until_first(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yields the items; closes the line before the first one."""
        for item in items:
            self.close()
            yield item
