"""What a function of the C++ library is to the cells that call it: its name, and what it writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from mindbatch.kernels.layer import Operation

Settings = npt.NDArray[np.int32] | npt.NDArray[np.float32]
Infer = Callable[..., Any]
"""From the shapes (or dtypes) of a function's inputs, its settings included, to those of its outputs."""

MakeCell = Callable[[str, Infer, Infer, Settings | None], Operation]
"""From a function's name, what gives its outputs' shapes and dtypes, and its last input, which never changes,
to the cell of its other inputs."""

FLOAT = np.dtype(np.float32)


def first_type(*types: Any) -> Any:
    """The output has the first input's dtype."""
    return types[0]


def second_type(*types: Any) -> Any:
    """The output has the second input's dtype."""
    return types[1]


def float32(*types: Any) -> Any:
    """The output has the kernels' dtype."""
    return FLOAT
