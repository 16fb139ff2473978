"""For `tensor_parallel.grouped_layers`: GroupedMatmulV4, as a product with every expert."""

from __future__ import annotations

from typing import Any

from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype


class GroupedMatmul(nn.Cell):
    """Rows [n, inputs] sorted by expert times the weights [experts, inputs, outputs] of their expert.

    Every expert computes all rows, those of others as zeros: graphs have static shapes. The time is that of
    as many products as there are experts.
    """

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.matmul = ops.BatchMatMul()

    def construct(
        self,
        rows: list[Tensor],
        weights: list[Tensor],
        bias: None,
        scale: None,
        offset: None,
        antiquant_scale: None,
        antiquant_offset: None,
        per_token_scale: None,
        group_list: Tensor,
        split_item: int,
        group_type: int,
        group_list_type: int,
    ) -> tuple[Tensor]:
        x, weight = rows[0], weights[0]
        counts = group_list.astype(mstype.int32).expand_dims(1)
        ends = ops.cumsum(counts, 0)
        place = ops.arange(x.shape[0]).astype(mstype.int32).expand_dims(0)
        is_own = ops.logical_and(place >= ends - counts, place < ends).astype(x.dtype)
        return (self.matmul(is_own.expand_dims(-1) * x.expand_dims(0), weight).sum(0),)


def put_in(module: Any) -> None:
    """Replaces the operator of a grouped linear layer."""
    module.quant_method.matmul = GroupedMatmul()
