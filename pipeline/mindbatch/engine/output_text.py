"""The text of one output: what its tokens add becomes certain, and it is cut at stop strings."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Detokenizer(Protocol):
    """Turns one sequence's output tokens into text, never tearing a character."""

    def push(self, token_id: int) -> str: ...
    def flush(self) -> str: ...
    def fork(self) -> Detokenizer: ...


class StopMatcher:
    """Passes text through until a stop string is found; that string and what follows it are cut off.

    The text returned by all pushes and the flush, joined, is the whole text up to the place where the first
    stop string in it begins (the whole text if it has none), however it was split into pushes. So a tail that
    may begin a stop string is held back, and where stop strings overlap ("abcd" and "bc" after "abc"),
    the one that would begin first is waited for.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops` are texts, none of them empty."""
        self.stopped = False
        """True if a stop string was found; what is pushed from then on is dropped."""
        self._stops = tuple(stops)
        self._longest = max(map(len, stops), default=0)
        self._held = ""

    def push(self, text: str) -> str:
        """The text that has become certain with `text`."""
        if self.stopped:
            return ""
        self._held += text
        stop_start = self._first_stop()
        certain = min(stop_start, self._open_tail())
        self.stopped = certain == stop_start < len(self._held)
        return self._release(certain)

    def flush(self) -> str:
        """Text that was held back, at the end of the text; `stopped` is set if it holds a stop string."""
        stop_start = self._first_stop()
        self.stopped = self.stopped or stop_start < len(self._held)
        return self._release(stop_start)

    def _release(self, end: int) -> str:
        certain = self._held[:end]
        self._held = "" if self.stopped else self._held[end:]
        return certain

    def _first_stop(self) -> int:
        """Start of the first stop string in the held text; the text's length if there is none."""
        places = (self._held.find(stop) for stop in self._stops)
        return min((place for place in places if place >= 0), default=len(self._held))

    def _open_tail(self) -> int:
        """Start of the longest tail that may begin a stop string; the text's length if there is none."""
        length = len(self._held)
        starts = range(max(0, length - self._longest + 1), length)
        return next((start for start in starts if self._may_begin_stop(start)), length)

    def _may_begin_stop(self, start: int) -> bool:
        tail = self._held[start:]
        return any(stop.startswith(tail) for stop in self._stops)


@dataclass(slots=True)
class SequenceText:
    """The text of one sequence, cut at its stop strings."""

    detokenizer: Detokenizer
    stop: StopMatcher
    text: str = ""

    def push(self, token_id: int) -> str:
        """Adds a token; returns the text that has become certain."""
        added = self.stop.push(self.detokenizer.push(token_id))
        self.text += added
        return added

    def flush(self) -> str:
        """Ends the text; returns what was held back."""
        added = self.stop.push(self.detokenizer.flush()) + self.stop.flush()
        self.text += added
        return added

    def fork(self) -> SequenceText:
        """An independent copy for a sequence that continues in two ways."""
        return SequenceText(self.detokenizer.fork(), copy.copy(self.stop), self.text)
