"""Constraint: what a regular expression or a schema still allows after a row's output."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Constraint(Protocol):
    """The state of one row; the row advances it by each token that it gets."""

    def allowed(self, eos_token_ids: tuple[int, ...]) -> NDArray[np.bool_]:
        """Which tokens [V] may follow: end tokens only where the output may end here."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether the output fulfils it and nothing can be added."""
        ...

    def advance(self, token_id: int) -> None:
        """The row goes on with an allowed token; an end token leaves the state as it is."""
        ...

    def fork(self) -> Constraint:
        """An independent copy."""
        ...
