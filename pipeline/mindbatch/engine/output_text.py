"""Builds the text of an output from its tokens: whole characters, truncated at stop strings."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Detokenizer(Protocol):
    """Turns one sequence's output tokens into text in whole characters."""

    def push(self, token_id: int) -> str: ...
    def flush(self) -> str: ...
    def fork(self) -> Detokenizer: ...


class StopMatcher:
    """Passes text through until a stop string is found; that string and what follows it are cut off.

    The text returned by all pushes and the flush, joined, is the whole text up to the start of its first stop
    string (the whole text if it has none), however it was split into pushes. So a tail that may begin a stop
    string is kept back, and where stop strings overlap ("abcd" and "bc" after "abc"), the one that would
    begin first is waited for.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops` are texts, none of them empty."""
        self.stopped = False
        """True if a stop string was found; what is pushed from then on is dropped."""
        self._stops = tuple(stops)
        self._longest = max(map(len, stops), default=0)
        self._pending = ""

    def push(self, text: str) -> str:
        """Adds text; returns the text that has become certain."""
        if self.stopped:
            return ""
        self._pending += text
        stop_start = self._first_stop()
        certain = min(stop_start, self._open_tail())
        self.stopped = certain == stop_start < len(self._pending)
        return self._release(certain)

    def flush(self) -> str:
        """Ends the text; returns what was kept back, and sets `stopped` if that has a stop string."""
        stop_start = self._first_stop()
        self.stopped = self.stopped or stop_start < len(self._pending)
        return self._release(stop_start)

    def _release(self, end: int) -> str:
        certain = self._pending[:end]
        self._pending = "" if self.stopped else self._pending[end:]
        return certain

    def _first_stop(self) -> int:
        """Returns the start of the first stop string in the pending text, or the text's length."""
        starts = (self._pending.find(stop) for stop in self._stops)
        return min((start for start in starts if start >= 0), default=len(self._pending))

    def _open_tail(self) -> int:
        """Returns the start of the longest tail that may begin a stop string, or the text's length."""
        length = len(self._pending)
        starts = range(max(0, length - self._longest + 1), length)
        return next((start for start in starts if self._may_begin_stop(start)), length)

    def _may_begin_stop(self, start: int) -> bool:
        tail = self._pending[start:]
        return any(stop.startswith(tail) for stop in self._stops)


@dataclass(slots=True)
class SequenceText:
    """The text of one sequence, truncated at its stop strings."""

    detokenizer: Detokenizer
    stop: StopMatcher
    text: str = ""

    def push(self, token_id: int) -> str:
        """Adds a token; returns the text that has become certain."""
        added = self.stop.push(self.detokenizer.push(token_id))
        self.text += added
        return added

    def flush(self) -> str:
        """Ends the text; returns what was kept back."""
        added = self.stop.push(self.detokenizer.flush()) + self.stop.flush()
        self.text += added
        return added

    def fork(self) -> SequenceText:
        """Returns an independent copy, for a fork of the sequence."""
        return SequenceText(self.detokenizer.fork(), copy.copy(self.stop), self.text)
