"""A mixture of experts from MindSpore's operators: every expert computes every token, and most count 0."""

from __future__ import annotations

from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from mindbatch.kernels.interface import ExpertsShape


class Experts(nn.Cell):
    """See `Kernels.experts`. Of equal scores MindSpore's TopK takes the first; memory is experts x T."""

    def __init__(self, shape: ExpertsShape, activation: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.routing, self.inner = shape.routing, shape.inner
        self.activation = activation
        self.logits = ops.MatMul(transpose_b=True)
        self.product = ops.BatchMatMul(transpose_b=True)

    def construct(self, x: Tensor, router: Tensor, correction: Tensor, up: Tensor, down: Tensor) -> Tensor:
        experts, (tokens, width) = self.routing.experts, x.shape
        weights = self._weights(self.logits(x, router), correction)
        inputs = ops.broadcast_to(x.expand_dims(0), (experts, tokens, width))
        active = self.activation(
            self.product(inputs, up.reshape(experts, -1, width)).reshape(-1, 2 * self.inner)
        )
        outputs = self.product(
            active.reshape(experts, tokens, self.inner), down.reshape(experts, width, self.inner)
        )
        return ops.sum(outputs * ops.transpose(weights, (1, 0)).expand_dims(2), 0)

    def _weights(self, logits: Tensor, correction: Tensor) -> Tensor:
        """[T, experts] from logits like it; 0 for experts that are not chosen."""
        its = self.routing
        scores = ops.sigmoid(logits) if its.is_sigmoid else ops.softmax(logits, -1)
        candidates = scores + correction
        if its.groups > 1:
            grouped = candidates.reshape(scores.shape[0], its.groups, -1)
            best = ops.topk(grouped, its.group_best)[0].sum(-1)
            candidates = (grouped * self._mask(best, its.chosen_groups).expand_dims(2)).reshape(scores.shape)
        weights = scores * self._mask(candidates, its.chosen)
        if its.is_normalised:
            weights = weights / (weights.sum(-1, keepdims=True) + 1e-20)
        return weights * its.scale

    def _mask(self, scores: Tensor, count: int) -> Tensor:
        """1 for the best of each row, else 0."""
        _, best = ops.topk(scores, count)
        return ops.one_hot(best, scores.shape[-1]).sum(-2).astype(mstype.float32)
