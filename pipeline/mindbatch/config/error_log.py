"""The collected errors of one configuration: all are found before any is reported."""

import re
from collections.abc import Iterable
from functools import partial

from mindbatch.io import error_lines
from mindbatch.io.errors import ConfigError

shown = partial(error_lines.shown, notation=error_lines.as_typed)
"""A value for an error line, as typed on a command line."""

_NAME = re.compile(r"\w+(?:\.\w+)*")


class ErrorLog:
    """Error lines in the order in which they were found, and the keys that have no trusted value for them."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._doubtful: set[str] = set()
        self._unread: set[str] = set()
        self._valid: set[str] = set()
        self.sources: dict[str, str] = {}
        """By key: what to put before a line on a value that the user gave under another name."""

    def add(self, line: str, *doubtful: str) -> None:
        """Notes an error that leaves `doubtful` without a trusted value: keys or groups."""
        self.lines.append(line)
        self._doubtful.update(doubtful)

    def add_unread(self, line: str, keys: Iterable[str]) -> None:
        """Notes why a file was not read that may have given any of `keys`."""
        self.lines.append(line)
        self._unread.update(keys)

    def mark_invalid(self, key: str) -> None:
        """Notes that `key` has no trusted value."""
        self._doubtful.add(key)
        self._valid.discard(key)

    def mark_valid(self, key: str) -> None:
        """Notes that the user gave `key` a value that was taken, whatever is wrong with its group or file."""
        self._valid.add(key)

    def add_consequences(self, lines: Iterable[str]) -> None:
        """Notes errors found in the values, except those that name a key without a trusted value.

        The default stands in for a refused value: what the default contradicts is no news to the user.
        """
        news = (line for line in lines if not any(map(self._is_doubtful, _NAME.findall(line))))
        self.lines.extend(self._source(line) + line for line in news)

    def raise_if_any(self) -> None:
        if self.lines:
            raise ConfigError(dict.fromkeys(self.lines))

    def _source(self, line: str) -> str:
        first = _NAME.match(line)
        return self.sources.get(first[0], "") if first else ""

    def _is_doubtful(self, key: str) -> bool:
        group, dot, _ = key.partition(".")
        is_of_doubtful = key in self._unread or (bool(dot) and group in self._doubtful)
        return key in self._doubtful or (is_of_doubtful and key not in self._valid)
