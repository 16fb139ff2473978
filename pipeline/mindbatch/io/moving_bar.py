"""Lines that move on a terminal and then disappear: a bar as rows end, a line before the first result.

In a notebook the bar moves below its cell, and stays there as it was at the end.
"""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TextIO, TypeVar

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.jupyter import JupyterMixin
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from mindbatch.io.closing import Closing

if TYPE_CHECKING:
    from IPython.display import DisplayHandle

REDRAWS_PER_SECOND = 5.0


def can_redraw(file: TextIO) -> bool:
    """True of a terminal that moves its cursor, so that a line can be drawn over."""
    return file.isatty() and not Console(file=file).is_dumb_terminal


class MovingBar(Progress):
    """Progress bar that printed lines do not break.

    What is printed meanwhile to standard error appears above it, and to standard output if that is a
    terminal. Without a terminal or a notebook, or with disable=True, nothing is drawn.
    """

    def __init__(self, description: str, console: Console, *, disable: bool = False) -> None:
        self._status = ""
        self._frame = _NotebookFrame(self) if console.is_jupyter and not disable else None
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
            disable=disable or console.is_jupyter or console.is_dumb_terminal,
        )
        self._rows = self.add_task(description, total=None, note="")

    def set(self, ended: int, total: int, note: str, status: str = "") -> None:
        """Sets the bar, with `note` at its right and `status` below it; the next refresh draws it."""
        self._status = status
        self.update(self._rows, completed=ended, total=total, note=note)
        if self._frame is not None:
            self._frame.draw()

    def stop(self) -> None:
        super().stop()
        if self._frame is not None:
            self._frame.draw(is_last=True)

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self._status:
            yield Text(self._status, style="dim")


class _NotebookFrame(JupyterMixin):
    """The output of a notebook's cell in which a bar is drawn over; it needs no widgets."""

    def __init__(self, bar: MovingBar) -> None:
        self._bar = bar
        self._handle: DisplayHandle | None = None
        self._drawn = -1 / REDRAWS_PER_SECOND

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self._bar.get_renderables()

    def draw(self, *, is_last: bool = False) -> None:
        """Draws the bar, if the last time was long enough ago."""
        now = time.monotonic()
        if self._handle is None:
            from IPython.display import display  # there is one, as rich has seen its shell

            self._handle = display(self, display_id=True)
        elif is_last or now - self._drawn >= 1 / REDRAWS_PER_SECOND:
            self._handle.update(self)
        else:
            return
        self._drawn = now


Item = TypeVar("Item")

CLEARED = "\r\x1b[K"


class LoadingLine(Closing):
    """Shows the latest text it was called with on one line of a terminal, until it is closed.

    forced: shows it on other files too.
    """

    def __init__(self, *, shown: bool = True, file: TextIO | None = None, forced: bool = False) -> None:
        self._file = file or sys.stderr
        self._shown = shown and (forced or can_redraw(self._file))
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
