"""Showing how far the data has been read, where that takes longer than a moment."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

from mindbatch.io.amounts import counted
from mindbatch.io.screen_text import show
from mindbatch.run.progress import PLAIN_LINE_SECONDS

_LOOKED_AT = 1 << 12
"""Rows between two looks at the clock."""
_MOVING_SECONDS = 0.5
_CLEARED = "\r\x1b[K"


class ReadingLine:
    """Called with counts of rows: on a terminal a line that changes, else one every 30 s.

    kind: as of `RunProgress`.
    """

    def __init__(
        self, kind: str, file: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._file = file or sys.stderr
        self._moves = kind == "rich" or (kind == "auto" and self._file.isatty())
        self._seconds = _MOVING_SECONDS if self._moves else PLAIN_LINE_SECONDS
        self._is_silent = kind == "none"
        self._clock = clock
        self._shown = clock()
        self._is_drawn = False

    def __call__(self, rows: int, errors: int) -> None:
        if rows % _LOOKED_AT or self._is_silent or self._clock() - self._shown < self._seconds:
            return
        self._shown = self._clock()
        text = f"{counted(rows, 'row')} read, {counted(errors, 'error')}"
        if self._moves:
            self._is_drawn = True
            self._file.write(_CLEARED + text)
            self._file.flush()
        else:
            show(text, self._file)

    def close(self) -> None:
        """Clears what moves."""
        if self._is_drawn:
            self._file.write(_CLEARED)
            self._file.flush()
