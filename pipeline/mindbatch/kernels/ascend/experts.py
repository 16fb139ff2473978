"""A mixture of experts on Ascend: rows sorted by expert, one product over all experts, and back.

The operators and their arguments are those with which MindFormers 1.9 runs such models.
"""

from mindspore import Tensor, mint, nn, ops
from mindspore import dtype as mstype

from mindbatch.kernels.shapes import ExpertsShape, Routing

_COUNTS = 2
"""MoeInitRoutingV2 gives how many rows each expert has, not where they end."""
_OF_ROWS, _ONE_OUTPUT, _BY_COUNTS = 0, 3, 1
"""GroupedMatmulV4: groups are of rows, their outputs one tensor, their sizes given as counts."""


class ExpertsCell(nn.Cell):
    """Computes `experts`; up [experts, width, 2 * inner], gates first, down [experts, inner, width]."""

    def __init__(self, shape: ExpertsShape, activation: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.experts = shape.routing.experts
        self.router = RouterCell(shape.routing)
        self.activation = activation
        self.chosen, self.weighs_inputs = shape.routing.chosen, shape.weighs_inputs
        self.inner, self.limit = shape.inner, shape.limit
        self.sort = ops.auto_generate.MoeInitRoutingV2()
        self.product = ops.auto_generate.GroupedMatmulV4()
        self.combine = ops.auto_generate.MoeTokenUnpermute()

    def construct(
        self, x: Tensor, router: Tensor, correction: Tensor, up: Tensor, down: Tensor, *biases: Tensor
    ) -> Tensor:
        weights, chosen = self.router(x, router, correction, *biases[:1])
        if self.weighs_inputs:  # so each choice of a token is a row of its own, with one expert
            scaled = x.expand_dims(1) * ops.cast(weights, x.dtype).expand_dims(2)
            x, chosen = scaled.reshape(-1, x.shape[1]), chosen.reshape(-1, 1)
            weights = ops.ones_like(weights).reshape(-1, 1)
        rows, places, counts, _ = self.sort(x, chosen, 0, 0, self.experts, 0, _COUNTS, True)
        counts = ops.cast(counts, mstype.int64)
        gate_up = self._biased(self._of_each(rows, up, counts), chosen, *biases[1:2])
        if self.limit > 0:
            gate_up = self._clamped(gate_up)
        outputs = self._biased(self._of_each(self.activation(gate_up), down, counts), chosen, *biases[2:3])
        y = self.combine(outputs, places, ops.cast(weights, x.dtype), False, None)
        return y.reshape(-1, self.chosen, y.shape[1]).sum(1) if self.weighs_inputs else y

    def _biased(self, rows: Tensor, chosen: Tensor, *bias: Tensor) -> Tensor:
        """Rows in order of expert, each plus the vector of its expert, where there are vectors."""
        if len(bias) == 0 or bias[0].ndim == 1:
            return rows
        experts = ops.cast(ops.sort(_float32(chosen.reshape(-1)))[0], mstype.int32)
        return rows + ops.cast(ops.gather(bias[0], experts, 0), rows.dtype)

    def _clamped(self, gate_up: Tensor) -> Tensor:
        pairs = gate_up.reshape(-1, self.inner, 2)
        gates, ups = mint.narrow(pairs, 2, 0, 1), mint.narrow(pairs, 2, 1, 1)
        gates = ops.clamp(gates, None, self.limit)
        ups = ops.clamp(ups, -self.limit, self.limit) + 1.0
        return ops.cat((gates, ups), 1).reshape(gate_up.shape)

    def _of_each(self, rows: Tensor, matrices: Tensor, counts: Tensor) -> Tensor:
        """Rows [n, inputs] in order of expert times the matrix [inputs, outputs] of theirs."""
        return self.product(
            [rows],
            [matrices],
            None,
            None,
            None,
            None,
            None,
            None,
            counts,
            split_item=_ONE_OUTPUT,
            group_type=_OF_ROWS,
            group_list_type=_BY_COUNTS,
        )[0]


_LEAST = 1e-20  # is added to a sum that is divided by
_WORSE = 1e30  # what experts of other groups score less


class RouterCell(nn.Cell):
    """Cell (x [T, width], router [experts, width], correction, bias) -> weights and experts [T, k].

    All is computed in float32, and the experts are int32. Of equal scores MindSpore's TopK takes the first.
    """

    def __init__(self, routing: Routing) -> None:
        super().__init__(auto_prefix=False)
        self.routing = routing
        self.logits = ops.MatMul(transpose_b=True)

    def construct(
        self, x: Tensor, router: Tensor, correction: Tensor, *bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        routing = self.routing
        logits = self.logits(_float32(x), _float32(router))
        if len(bias) > 0:
            logits = logits + _float32(bias[0])
        scores = ops.sigmoid(logits) if routing.is_sigmoid else ops.softmax(logits, -1)
        candidates = scores + _float32(correction)
        if routing.groups > 1:
            candidates = self._of_best_groups(candidates)
        _, chosen = ops.topk(candidates, routing.chosen)
        weights = ops.gather_elements(scores, 1, chosen)
        if routing.is_normalised:
            weights = weights / (weights.sum(-1, keepdims=True) + _LEAST)
        return weights * routing.scale, ops.cast(chosen, mstype.int32)

    def _of_best_groups(self, candidates: Tensor) -> Tensor:
        """Lowers candidates outside the best groups below any score."""
        routing = self.routing
        grouped = candidates.reshape(candidates.shape[0], routing.groups, -1)
        best = ops.topk(grouped, routing.group_best)[0].sum(-1)
        _, groups = ops.topk(best, routing.chosen_groups)
        is_best = _is_each(groups, routing.groups).sum(1).expand_dims(2)
        return (grouped + (is_best - 1) * _WORSE).reshape(candidates.shape)


def _is_each(chosen: Tensor, count: int) -> Tensor:
    """[T, k, count]: 1 where a number is that of chosen [T, k], else 0."""
    return _float32(chosen.expand_dims(2) == ops.cast(ops.arange(count), chosen.dtype))


def _float32(x: Tensor) -> Tensor:
    return ops.cast(x, mstype.float32)
