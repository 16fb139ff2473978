"""Step: one row's scores on their way through its processors, and what those ask of the row."""

from array import array
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.row import Row
from mindbatch.errors import PromptError

NEVER = np.float32(-np.inf)


class NoTokenLeftError(PromptError):
    """A row's processors forbid every token. A search may drop the row and go on with others."""


class Step:
    """The scores [V] of one row, copied when they are first changed.

    scores: not to be written to; see `writable`.
    """

    __slots__ = ("_allowed", "_forbidding", "_given", "_output", "row", "scores")

    def __init__(self, scores: NDArray[np.float32], row: Row) -> None:
        self.row = row
        self.scores = scores
        self._given = scores
        self._forbidding: list[str] = []
        self._output: NDArray[np.int64] | None = None
        self._allowed: NDArray[np.bool_] | None = None

    @property
    def length(self) -> int:
        """Tokens of prompt and output."""
        return len(self.row.prompt_token_ids) + self.row.step

    @property
    def output(self) -> NDArray[np.int64]:
        """The output's tokens."""
        if self._output is None:
            self._output = token_array(self.row.output_token_ids)
        return self._output

    def latest(self, count: int) -> tuple[int, ...]:
        """The last `count` tokens of prompt and output, all of them if there are fewer."""
        output = self.row.output_token_ids
        missing = count - len(output)
        if missing <= 0:
            return tuple(output[-missing:])
        return (*self.row.prompt_token_ids[-missing:], *output)

    @property
    def allowed(self) -> NDArray[np.bool_] | None:
        """Which tokens [V] the row's constraint allows; None if it has no constraint."""
        if self._allowed is None and self.row.constraint is not None:
            self._allowed = self.row.constraint.allowed(self.row.eos_token_ids)
        return self._allowed

    def writable(self) -> NDArray[np.float32]:
        """The scores, to be changed in place."""
        if self.scores is self._given:
            self.scores = self._given.copy()
        return self.scores

    def forbid(self, token_ids: NDArray[np.int64], by: str) -> None:
        """Puts tokens at minus infinity; ids of V or more are passed over. `by` names the parameter."""
        known = token_ids[token_ids < self.scores.size]
        if known.size:
            self.writable()[known] = NEVER
            self._forbidding.append(by)

    def allow_only(self, allowed: NDArray[np.bool_], by: str) -> None:
        """Puts every token at minus infinity but those where `allowed` [V] is true."""
        ceilings = (allowed - np.float32(0.5)) * np.float32(np.inf)  # np.where takes ten times as long
        self.scores = np.minimum(self.scores, ceilings, out=ceilings)
        self._forbidding.append(by)

    def force(self, token_ids: Sequence[int], by: str) -> None:
        """Puts `token_ids` at 0 and all others at minus infinity, whatever came before."""
        self.scores = np.full_like(self.scores, NEVER)
        self.scores[list(token_ids)] = 0
        self._forbidding = [by]

    def result(self) -> NDArray[np.float32]:
        """The scores in the end; raises NoTokenLeftError if all are minus infinity."""
        if self._forbidding and self.scores.max() == NEVER:
            raise NoTokenLeftError(
                f"{self.row.key}: no token is left for position {self.row.step} of output "
                f"{self.row.sample_index}: forbidden by {', '.join(dict.fromkeys(self._forbidding))}; "
                "relax one of them"
            )
        return self.scores


Processor = Callable[[Step], None]
"""Changes a step's scores. It serves a row and its forks, so it keeps nothing that depends on the output."""


def token_array(token_ids: Sequence[int]) -> NDArray[np.int64]:
    """Token ids as an array, which cannot be written to."""
    return np.frombuffer(array("q", token_ids), dtype=np.int64)
