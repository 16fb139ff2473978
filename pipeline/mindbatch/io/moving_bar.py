"""A bar on a terminal that grows as rows end, with a line below it; it disappears at the end."""

import sys
from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

REDRAWS_PER_SECOND = 5.0


class MovingBar(Progress):
    """Progress bar that printed lines do not break.

    What is printed meanwhile to standard error appears above it, and to standard output if that is a
    terminal; not so with redirect=False. Without a terminal, or with disable=True, nothing is drawn.
    """

    def __init__(
        self, description: str, console: Console, *, disable: bool = False, redirect: bool = True
    ) -> None:
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
            redirect_stdout=redirect and sys.stdout.isatty(),
            redirect_stderr=redirect,
            disable=disable,
        )
        self._rows = self.add_task(description, total=None, note="")

    def set(self, ended: int, total: int, note: str, status: str = "") -> None:
        """`note` stands at the right, `status` below it; drawn the next time, whenever it is called."""
        self._status = status
        self.update(self._rows, completed=ended, total=total, note=note)

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yields what is drawn, from top to bottom."""
        yield from super().get_renderables()
        if self._status:
            yield Text(self._status, style="dim")
