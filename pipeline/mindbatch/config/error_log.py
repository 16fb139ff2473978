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
    """Error lines in the order of their discovery, and the keys whose values are invalid."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._doubtful: set[str] = set()
        self._unread: set[str] = set()
        self._valid: set[str] = set()
        self.sources: dict[str, str] = {}
        """Prefixes of error lines, by key: the file that sets the key, or the name that the user gave it."""

    def add(self, line: str, *doubtful: str) -> None:
        """Adds an error, after which the values of the keys or groups `doubtful` are invalid."""
        self.lines.append(line)
        self._doubtful.update(doubtful)

    def add_unread(self, line: str, keys: Iterable[str]) -> None:
        """Adds an error of a file that was not read and may set any of `keys`."""
        self.lines.append(line)
        self._unread.update(keys)

    def mark_invalid(self, key: str) -> None:
        """Marks the value of `key` as invalid."""
        self._doubtful.add(key)
        self._valid.discard(key)

    def mark_valid(self, key: str) -> None:
        """Marks the value of `key` as valid, even if its group or file has an error."""
        self._valid.add(key)

    def add_consequences(self, lines: Iterable[str]) -> None:
        """Adds errors of validated values, except those that name a key with an invalid value.

        The default replaces an invalid value, and an error that follows from the default would mislead.
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
