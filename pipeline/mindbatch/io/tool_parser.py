"""Parses the flags of a tool and reports every wrong one, one a line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from mindbatch.io.error_lines import did_you_mean, shown
from mindbatch.io.errors import EXIT_USAGE
from mindbatch.io.screen_text import say

_EXPECTED: dict[Any, str] = {int: "must be a whole number", float: "must be a number"}


class ToolParser(argparse.ArgumentParser):
    """argparse's parser, which reports all errors at once, with typed values as `screen_text` shows them.

    A `type` raises ArgumentTypeError with the allowed values; the flag and its value are put before it, and
    the default is used.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._errors: list[str] = []

    @classmethod
    def of_page(cls, name: str, page: str | None) -> ToolParser:
        """Returns the parser of a tool whose help is a page, as it is laid out; flags have their whole
        names."""
        formatter = argparse.RawDescriptionHelpFormatter
        return cls(prog=name, description=page, formatter_class=formatter, allow_abbrev=False)

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:
        action = super().add_argument(*names, **options)
        if "type" in options:
            action.type = self._noting(names[0], options["type"], action.default)
        return action

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        arguments, unread = self.parse_known_args(args, namespace)
        self._errors += self._unread(unread)
        if self._errors:
            self._end()
        return arguments

    def parse_with_errors(self) -> tuple[argparse.Namespace, list[str]]:
        """Returns the process's arguments, flags and words in any order, and their errors so far."""
        arguments, unread = self.parse_known_intermixed_args()
        return arguments, [*self._errors, *self._unread(unread)]

    def error(self, message: str) -> NoReturn:
        """Reports an error that ends argparse's own parsing, after the errors before it."""
        self._errors.append(message.removeprefix("argument "))
        self._end()

    def _noting(self, name: str, convert: Callable[[str], Any], default: Any) -> Callable[[str], Any]:
        def converted(text: str) -> Any:
            try:
                return convert(text)
            except argparse.ArgumentTypeError as error:
                allowed = str(error)
            except (TypeError, ValueError):
                allowed = _EXPECTED[convert]
            self._errors.append(f"{name} {shown(text)}: {allowed}")
            return default

        return converted

    def _unread(self, words: Sequence[str]) -> Iterator[str]:
        """Yields words that are neither a flag nor its value; one after an unknown flag may be its value."""
        flags = [word for word in words if word.startswith("-")]
        known = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
        for word in flags:
            name = word.partition("=")[0]
            yield f"{shown(name, notation=str)}: unknown flag{did_you_mean(name, known)}"
        for word in () if flags else words:
            yield f"{shown(word)}: one too many"

    def _end(self) -> NoReturn:
        say(*self._errors, name=self.prog)
        self.exit(EXIT_USAGE)
