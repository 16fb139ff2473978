"""A norm, joined with the residual sum in front of it."""

from __future__ import annotations

from mindspore import Tensor, nn

from mindbatch.layers.weights import Weights


class AddNorm(nn.Cell):
    """(update, residual) [T, hidden] -> (norm(update + residual), update + residual)."""

    def __init__(self, name: str, weights: Weights, operator: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.weight = weights.get(f"{name}.weight")
        self.bias = weights.optional(f"{name}.bias")
        self.operator = operator

    def construct(self, update: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        return self.operator(update, residual, self.weight, self.bias)
