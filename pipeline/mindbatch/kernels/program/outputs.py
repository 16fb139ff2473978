"""Memory for what a program gives: used again, for the system clears what it hands out anew."""

from __future__ import annotations

import math
import sys

import numpy as np

from mindbatch.kernels.arrays import Array
from mindbatch.kernels.recording import Symbol

_REFERENCES_OF_OURS = 2  # the attribute, and the argument of getrefcount


class OutputMemory:
    """Arrays for one output of a program, of as many rows as each step has.

    The memory of the last one serves for the next, unless somebody still has that array or a view of it.

    address: of the array that was made last.
    """

    def __init__(self, symbol: Symbol) -> None:
        self._columns, self._dtype = symbol.shape[1:], symbol.dtype
        self._memory = np.empty(0, self._dtype)
        self.address = self._memory.ctypes.data

    def array(self, rows: int) -> Array:
        """[rows, ...], whatever is in it."""
        size = rows * math.prod(self._columns)
        if size > len(self._memory) or sys.getrefcount(self._memory) > _REFERENCES_OF_OURS:
            self._memory = np.empty(size, self._dtype)  # every view of it refers to it
            self.address = self._memory.ctypes.data
        return self._memory[:size].reshape(rows, *self._columns)
