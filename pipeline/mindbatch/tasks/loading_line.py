"""A line on a terminal that says what is done before the first result; nothing where there is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TextIO, TypeVar

Item = TypeVar("Item")

CLEARED = "\r\x1b[K"


class LoadingLine:
    """Shows what it is called with in place of what it showed before, until it is stopped."""

    def __init__(self, *, shown: bool = True, file: TextIO | None = None) -> None:
        self._file = file or sys.stderr
        self._shown = shown and self._file.isatty()

    def __call__(self, text: str) -> None:
        if self._shown:
            self._file.write(CLEARED + text)
            self._file.flush()

    def __enter__(self) -> LoadingLine:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Clears the line; nothing is shown from now on."""
        self("")
        self._shown = False

    def until_first(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items; the line is gone before the first one."""
        for item in items:
            self.stop()
            yield item
