"""A norm, joined with the residual sum in front of it."""

from __future__ import annotations

from mindspore import Tensor, nn


class AddNorm(nn.Cell):
    """update [T, hidden], residual like it or [1] -> (norm(update + residual), update + residual)."""

    def __init__(self, weight: Tensor, bias: Tensor, operator: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.weight = weight
        self.bias = bias
        self.operator = operator

    def construct(self, update: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        return self.operator(update, residual, self.weight, self.bias)
