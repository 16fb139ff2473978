"""Constraint: what a regular expression or a schema still allows after a row's output."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Constraint(Protocol):
    """The state of one row; the row advances it by each token that it gets."""

    def allowed(self, eos_token_ids: tuple[int, ...]) -> NDArray[np.bool_]:
        """Which tokens [V] may follow; not to be changed. End tokens are among them where the output may end.

        None is when the constraint is complete and there are no end tokens, and when it is at fault.
        """
        ...

    @property
    def is_complete(self) -> bool:
        """Whether the output fulfils it and no text can be added."""
        ...

    @property
    def fault(self) -> str | None:
        """Why the row cannot go on, in one line: no token fits, or its grammar takes too much to follow."""
        ...

    def advance(self, token_id: int) -> None:
        """The row goes on with an allowed token; an end token leaves the state as it is."""
        ...

    def fork(self) -> Constraint:
        """An independent copy."""
        ...
