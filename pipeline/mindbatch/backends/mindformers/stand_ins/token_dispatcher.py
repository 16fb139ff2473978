"""For `transformer.moe.token_dispatcher`: MoeInitRoutingV2 and MoeTokenUnpermute, from plain operators."""

from __future__ import annotations

from typing import Any

from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype


class TokenDispatch(nn.Cell):
    """Sorts the choices of tokens by expert.

    Tokens [T, width] and their experts [T, k] -> rows [T * k, width] in order of expert, how many each expert
    has, and where among them each choice of each token stands.
    """

    def __init__(self, num_experts: int) -> None:
        super().__init__(auto_prefix=False)
        self.num_experts = num_experts

    def construct(self, hidden_states: Tensor, routing_map: Tensor) -> Any:
        chosen = routing_map.reshape(-1)
        counts = ops.one_hot(chosen, self.num_experts, 1, 0).sum(0)
        place = ops.arange(chosen.shape[0]).astype(mstype.float32)
        by_expert = chosen.astype(mstype.float32) * chosen.shape[0]  # exact: far below 2 ** 24
        order = ops.argsort(by_expert + place)
        rows = ops.gather(hidden_states, order // routing_map.shape[1], 0)
        return rows, counts.astype(mstype.int64), (ops.argsort(order.astype(mstype.float32)),)


class TokenCombine(nn.Cell):
    """Sorted rows [T * k, width] and weights [T, k] -> the weighted sum of each token's rows [T, width]."""

    def construct(self, hidden_states: Tensor, expert_weight: Tensor, places: Tensor) -> Tensor:
        rows = ops.gather(hidden_states, places, 0)
        by_token = rows.reshape((*expert_weight.shape, hidden_states.shape[1]))
        return (by_token * expert_weight.expand_dims(-1)).sum(1)


def put_in(module: Any) -> None:
    """Replaces the two ways of a MoEAllGatherTokenDispatcher."""
    module.token_dispatch = TokenDispatch(module.num_experts)
    module.token_combine = TokenCombine()
