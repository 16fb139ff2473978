"""Norms: alone, and joined with the residual sum in front of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mindbatch.kernels.layer import Layer, Operation

if TYPE_CHECKING:
    from mindspore import Tensor


class Norm(Layer):
    """x [T, hidden] -> norm(x)."""

    def __init__(self, weight: Tensor, bias: Tensor, operator: Operation) -> None:
        self.weight = weight
        self.bias = bias
        self.operator = operator

    def construct(self, x: Tensor) -> Tensor:
        return self.operator(x, self.weight, self.bias)


class AddNorm(Layer):
    """update [T, hidden], residual like it or [1] -> (norm(update + residual), update + residual)."""

    def __init__(self, weight: Tensor, bias: Tensor, operator: Operation) -> None:
        self.weight = weight
        self.bias = bias
        self.operator = operator

    def construct(self, update: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        return self.operator(update, residual, self.weight, self.bias)
