"""A mixture of experts on Ascend: rows sorted by expert, one product over all experts, and back.

The operators and their arguments are those with which MindFormers 1.9 runs such models.
"""

from __future__ import annotations

from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from mindbatch.kernels.ascend.router import Router
from mindbatch.kernels.shapes import ExpertsShape

_COUNTS = 2
"""MoeInitRoutingV2 gives how many rows each expert has, not where they end."""
_OF_ROWS, _ONE_OUTPUT, _BY_COUNTS = 0, 3, 1
"""GroupedMatmulV4: groups are of rows, their outputs one tensor, their sizes given as counts."""


class Experts(nn.Cell):
    """See `operations.experts`; up [experts, width, 2 * inner], gates first, down [experts, inner, width]."""

    def __init__(self, shape: ExpertsShape, activation: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.experts = shape.routing.experts
        self.router = Router(shape.routing)
        self.activation = activation
        self.sort = ops.auto_generate.MoeInitRoutingV2()
        self.product = ops.auto_generate.GroupedMatmulV4()
        self.combine = ops.auto_generate.MoeTokenUnpermute()

    def construct(self, x: Tensor, router: Tensor, correction: Tensor, up: Tensor, down: Tensor) -> Tensor:
        weights, chosen = self.router(x, router, correction)
        rows, places, counts, _ = self.sort(x, chosen, 0, 0, self.experts, 0, _COUNTS, True)
        counts = ops.cast(counts, mstype.int64)
        active = self.activation(self._of_each(rows, up, counts))
        outputs = self._of_each(active, down, counts)
        return self.combine(outputs, places, ops.cast(weights, x.dtype), False, None)

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
