"""A mixture of experts from MindSpore's operators: every expert computes every token, and most count 0."""

from __future__ import annotations

from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from mindbatch.kernels.routing import Routing
from mindbatch.kernels.shapes import ExpertsShape

_LEAST = 1e-20  # is added to a sum that is divided by
_WORSE = 1e30  # what experts of other groups score less


class Router(nn.Cell):
    """Cell (x [T, width], router [experts, width], correction) -> weights float32 and experts int32, [T, k].

    All is computed in float32. Of equal scores MindSpore's TopK takes the first.
    """

    def __init__(self, routing: Routing) -> None:
        super().__init__(auto_prefix=False)
        self.routing = routing
        self.logits = ops.MatMul(transpose_b=True)

    def construct(self, x: Tensor, router: Tensor, correction: Tensor) -> tuple[Tensor, Tensor]:
        its = self.routing
        logits = self.logits(_float32(x), _float32(router))
        scores = ops.sigmoid(logits) if its.is_sigmoid else ops.softmax(logits, -1)
        candidates = scores + _float32(correction)
        if its.groups > 1:
            candidates = self._of_best_groups(candidates)
        _, chosen = ops.topk(candidates, its.chosen)
        weights = ops.gather_elements(scores, 1, chosen)
        if its.is_normalised:
            weights = weights / (weights.sum(-1, keepdims=True) + _LEAST)
        return weights * its.scale, ops.cast(chosen, mstype.int32)

    def _of_best_groups(self, candidates: Tensor) -> Tensor:
        """The same with less than any score outside the best groups."""
        its = self.routing
        grouped = candidates.reshape(candidates.shape[0], its.groups, -1)
        best = ops.topk(grouped, its.group_best)[0].sum(-1)
        _, groups = ops.topk(best, its.chosen_groups)
        is_best = _is_each(groups, its.groups).sum(1).expand_dims(2)
        return (grouped + (is_best - 1) * _WORSE).reshape(candidates.shape)


class Experts(nn.Cell):
    """See `Kernels.experts`. Memory is experts x T."""

    def __init__(self, shape: ExpertsShape, activation: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.experts, self.inner = shape.routing.experts, shape.inner
        self.router = Router(shape.routing)
        self.activation = activation
        self.product = ops.BatchMatMul(transpose_b=True)

    def construct(self, x: Tensor, router: Tensor, correction: Tensor, up: Tensor, down: Tensor) -> Tensor:
        experts, (tokens, width) = self.experts, x.shape
        weights, chosen = self.router(x, router, correction)
        every = (_is_each(chosen, experts) * weights.expand_dims(2)).sum(1)
        inputs = ops.broadcast_to(x.expand_dims(0), (experts, tokens, width))
        active = self.activation(
            self.product(inputs, up.reshape(experts, -1, width)).reshape(-1, 2 * self.inner)
        )
        outputs = self.product(
            active.reshape(experts, tokens, self.inner), down.reshape(experts, width, self.inner)
        )
        return ops.sum(outputs * ops.transpose(every, (1, 0)).expand_dims(2), 0)


def _is_each(chosen: Tensor, count: int) -> Tensor:
    """[T, k, count]: 1 where a number is that of chosen [T, k], else 0."""
    return _float32(chosen.expand_dims(2) == ops.cast(ops.arange(count), chosen.dtype))


def _float32(x: Tensor) -> Tensor:
    return ops.cast(x, mstype.float32)
