"""The stand-in for MindFormers' routing chooses and weighs experts as DeepSeek-V3's rule says."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mindspore import Parameter, Tensor
from numpy.typing import NDArray

from mindbatch.backends.mindformers.stand_ins.experts import TopKRouting
from mindbatch.parallel.context import initialise

EXPERTS, SCALE = 16, 2.5
Array = NDArray[np.float32]


def module(k: int, groups: int, taken: int, bias: Array | None) -> SimpleNamespace:
    """What a TopKRouter of MindFormers says of itself."""
    config = SimpleNamespace(
        num_moe_experts=EXPERTS,
        moe_router_num_groups=groups,
        moe_router_group_topk=taken,
        norm_topk_prob=True,
        moe_router_topk_scaling_factor=SCALE,
    )
    expert_bias = None if bias is None else Parameter(Tensor(bias))
    return SimpleNamespace(topk=k, config=config, score_function="sigmoid", expert_bias=expert_bias)


def expected(logits: Array, k: int, groups: int, taken: int, bias: Array) -> Array:
    """The weight of each expert for one token, [EXPERTS]; the two best of a group rate it."""
    scores = 1 / (1 + np.exp(-logits))
    rated = (scores + bias).reshape(groups, -1)
    rates = np.sort(rated, axis=1)[:, -2:].sum(1)
    allowed = np.zeros_like(rated)
    allowed[np.argsort(rates)[-taken:]] = 1
    chosen = np.argsort(np.where(allowed.reshape(-1) > 0, rated.reshape(-1), -np.inf))[-k:]
    weights = np.zeros_like(scores)
    weights[chosen] = scores[chosen] / scores[chosen].sum() * SCALE
    return weights


@pytest.mark.slow
@pytest.mark.parametrize(
    ("k", "groups", "taken", "is_corrected"),
    [(4, 4, 2, True), (2, 8, 1, True), (4, 1, 1, True), (4, 4, 2, False)],
)
def test_experts_and_weights(k: int, groups: int, taken: int, is_corrected: bool) -> None:
    initialise("CPU")
    numbers = np.random.default_rng(k + groups)
    logits = numbers.standard_normal((32, EXPERTS)).astype(np.float32)
    bias = numbers.random(EXPERTS).astype(np.float32) if is_corrected else np.zeros(EXPERTS, np.float32)
    routing: Any = TopKRouting(module(k, groups, taken, bias if is_corrected else None))
    weights, chosen = (found.asnumpy() for found in routing(Tensor(logits)))
    for token, row in enumerate(logits):
        found = np.zeros(EXPERTS, np.float32)
        found[chosen[token]] = weights[token]
        np.testing.assert_allclose(found, expected(row, k, groups, taken, bias), atol=1e-6)
