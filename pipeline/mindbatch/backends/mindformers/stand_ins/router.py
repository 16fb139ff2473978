"""For `transformer.moe.router`: TopkExt, FusedAddTopKDiv and scatter, from MindSpore's plain operators.

They have kernels on a CPU and on Ascend, where they stand for FusedAddTopKDiv alone.
"""

from __future__ import annotations

from typing import Any

from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

LEAST = 1e-20  # MindFormers adds it to the sum that it divides by


class TopKRouting(nn.Cell):
    """Logits [T, experts] -> weights [T, k] and experts [T, k] of each token.

    With groups, only the experts of the best `taken_groups` may be chosen, a group being rated by the sum of
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
        """The scores, 0 in the groups that are not taken."""
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
            weights = weights / (weights.sum(-1, keepdims=True) + LEAST)
        return weights * self.scale, chosen.astype(mstype.int32)


def put_in(module: Any) -> None:
    """Replaces the routing of a TopKRouter."""
    object.__setattr__(module, "routing", TopKRouting(module))
