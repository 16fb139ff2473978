"""What models are assembled of: plain objects, which become calls of a program or MindSpore's cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Operation = Callable[..., Any]
"""A layer or an operation of kernels: called with a step's arrays, or with what stands for them."""


class Layer:
    """Attributes, and `construct`, which says what is computed from them and from a step's arrays.

    It is called as it is while a program is recorded (`program/recording.py`). Where MindSpore compiles, the
    layers of a network become cells of the same `construct` first (`layer_cells.py`), so that `construct`
    holds nothing that a graph refuses.
    """

    construct: Operation

    def __call__(self, *inputs: Any) -> Any:
        return self.construct(*inputs)


class Identity(Layer):
    """What a collective operation is in a group of one."""

    def construct(self, x: Any) -> Any:
        return x
