"""Inputs and end of a sequence: a step's choice, a draft to verify; the reason it ends."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

FinishReason = Literal["stop", "length"]
"""An end token, a stop string or a constraint that is fulfilled; or no room for another token."""


@dataclass(slots=True, frozen=True)
class TokenChoice:
    """A token that follows a row.

    `logprob` is its log-probability (nats) under the model's raw logits. `top_logprobs` maps tokens to
    theirs, likeliest first and `token_id` always among them, or is None when it was not asked for.
    """

    token_id: int
    logprob: float
    top_logprobs: dict[int, float] | None = None


@dataclass(slots=True, frozen=True)
class Draft:
    """Tokens that may follow a row's output.

    `probabilities` has for each of them the distribution [V] that it was drawn from; None says that the
    tokens were not drawn but certain, as those found in the prompt are.
    """

    token_ids: tuple[int, ...]
    probabilities: tuple[NDArray[np.float32], ...] | None = None


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
