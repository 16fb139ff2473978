"""Replaces `transformer.moe` and grouped linear layers by MindSpore's plain operators."""

from typing import Any

from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

EPSILON = 1e-20  # MindFormers adds it to the sum that it divides by


class TopKRouting(nn.Cell):
    """Computes weights [T, k] and experts [T, k] of each token from logits [T, experts].

    Replaces TopkExt, FusedAddTopKDiv and scatter on a CPU, and only FusedAddTopKDiv on Ascend.

    With groups, experts are chosen from the `taken_groups` best groups. The score of a group is the sum of
    its best k / taken_groups scores (DeepSeek-V3, 2024).
    """

    def __init__(self, module: Any) -> None:
        super().__init__(auto_prefix=False)
        config = module.config
        self.k, self.num_experts = module.topk, config.num_moe_experts
        self.is_sigmoid = module.score_function == "sigmoid"
        self.bias = module.expert_bias
        self.taken_groups = config.moe_router_group_topk or 1
        self.groups = (config.moe_router_num_groups or 1) if config.moe_router_group_topk else 1
        self.is_normed = config.norm_topk_prob and self.k > 1
        self.scale = config.moe_router_topk_scaling_factor or 1.0

    def _within_groups(self, scores: Tensor) -> Tensor:
        """Sets the scores of groups that are not chosen to 0."""
        grouped = scores.reshape((-1, self.groups, self.num_experts // self.groups))
        best, _ = ops.topk(grouped, self.k // self.taken_groups)
        _, taken = ops.topk(best.sum(-1), self.taken_groups)
        is_taken = taken.expand_dims(-1) == ops.arange(self.groups).astype(taken.dtype)
        kept = is_taken.astype(scores.dtype).sum(1)
        return (grouped * kept.expand_dims(-1)).reshape(scores.shape)

    def construct(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        scores = ops.sigmoid(logits) if self.is_sigmoid else ops.softmax(logits, -1)
        rated = scores if self.bias is None else scores + self.bias
        if self.taken_groups < self.groups:
            rated = self._within_groups(rated)
        _, chosen = ops.topk(rated, self.k)
        weights = ops.gather_elements(scores, 1, chosen)
        if self.is_normed:
            weights = weights / (weights.sum(-1, keepdims=True) + EPSILON)
        return weights * self.scale, chosen.astype(mstype.int32)


class TokenDispatch(nn.Cell):
    """Replaces MoeInitRoutingV2: sorts tokens by their chosen experts.

    Maps tokens [T, width] and their experts [T, k] to rows [T * k, width] in order of expert, the number of
    rows of each expert, and the row index of each choice of each token.
    """

    def __init__(self, num_experts: int) -> None:
        super().__init__(auto_prefix=False)
        self.num_experts = num_experts

    def construct(self, hidden_states: Tensor, routing_map: Tensor) -> Any:
        chosen = routing_map.reshape(-1)
        counts = ops.one_hot(chosen, self.num_experts, 1, 0).sum(0)
        index = ops.arange(chosen.shape[0]).astype(mstype.float32)
        by_expert = chosen.astype(mstype.float32) * chosen.shape[0]  # exact: far below 2 ** 24
        order = ops.argsort(by_expert + index)
        rows = ops.gather(hidden_states, order // routing_map.shape[1], 0)
        return rows, counts.astype(mstype.int64), (ops.argsort(order.astype(mstype.float32)),)


class TokenCombine(nn.Cell):
    """Replaces MoeTokenUnpermute: sums sorted rows [T * k, width] with weights [T, k] to [T, width]."""

    def construct(self, hidden_states: Tensor, expert_weight: Tensor, row_indices: Tensor) -> Tensor:
        rows = ops.gather(hidden_states, row_indices, 0)
        by_token = rows.reshape((*expert_weight.shape, hidden_states.shape[1]))
        return (by_token * expert_weight.expand_dims(-1)).sum(1)


class GroupedMatmul(nn.Cell):
    """Replaces GroupedMatmulV4: multiplies rows [n, inputs] by their expert of [experts, inputs, outputs].

    Each expert computes all rows, with zeros for those of others, because graphs have static shapes. So the
    time is that of one product per expert.
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
        row = ops.arange(x.shape[0]).astype(mstype.int32).expand_dims(0)
        mask = ops.logical_and(row >= ends - counts, row < ends).astype(x.dtype)
        return (self.matmul(mask.expand_dims(-1) * x.expand_dims(0), weight).sum(0),)
