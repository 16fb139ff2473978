"""Mixtures of experts: a router's choice, and the weighted sum of what the chosen compute."""

import numpy as np

from mindbatch.kernels.arrays import Array, FloatArray, PackedWeight
from mindbatch.kernels.operations.dense import activation
from mindbatch.kernels.recording import operation
from mindbatch.kernels.shapes import ExpertsShape, Routing
from mindbatch.kernels.step import IntArray

_LEAST = np.float32(1e-20)  # is added to a sum that is divided by


@operation(lambda x, router: router[0])
def router_logits(x: FloatArray, router: Array) -> FloatArray:
    """x [T, width], router [experts, width] float32 -> [T, experts]."""
    logits: FloatArray = x @ router.T
    return logits


@operation()
def experts(
    x: FloatArray,
    router: Array,
    correction: Array | None,
    up: PackedWeight,
    down: PackedWeight,
    router_bias: Array | None = None,
    up_bias: Array | None = None,
    down_bias: Array | None = None,
    expert_scale: Array | None = None,
    *,
    shape: ExpertsShape,
) -> FloatArray:
    """router [experts, width], correction [experts] or None: float32 -> [T, width].

    up, down: packed stacks of [2 * inner, width], the gate first, and [width, inner] of each expert.
    Where the shape has logits, they replace the router.
    Biases, where the shape has some: [experts], [experts, 2 * inner], [experts, width], each or None; and
    expert_scale [experts] or None, which weights are multiplied with behind all else.
    The weighted outputs of a row's experts are added in the order of the experts.
    """
    logits: FloatArray = router if shape.has_logits else x @ router.T
    products = expert_products(x, logits, correction, up, down, router_bias, up_bias, shape=shape)
    return expert_sum(products, logits, correction, router_bias, down_bias, expert_scale, shape=shape)


@operation(lambda x, *others, shape: shape.routing.chosen * x[1])
def expert_products(
    x: FloatArray,
    logits: FloatArray,
    correction: Array | None,
    up: PackedWeight,
    down: PackedWeight,
    router_bias: Array | None = None,
    up_bias: Array | None = None,
    *,
    shape: ExpertsShape,
) -> FloatArray:
    """Outputs of each of a row's experts, without a bias or a weight: [T, chosen * width].

    Ranks that divide the inner widths add it up before `expert_sum` is taken. Inputs as of `experts`.
    """
    weights, chosen = _routed(logits, correction, router_bias, shape)
    y = np.zeros((*chosen.shape, x.shape[1]), np.float32)
    ups = up.reshape(-1, 2 * shape.inner, x.shape[1])
    downs = down.reshape(-1, x.shape[1], shape.inner)
    for expert in np.unique(chosen):
        rows, choices = np.nonzero(chosen == expert)
        inputs = x[rows] * weights[rows, choices][:, None] if shape.weighs_inputs else x[rows]
        gate_up = inputs @ ups[expert].T if up_bias is None else inputs @ ups[expert].T + up_bias[expert]
        if shape.limit:
            gate_up = clamped(gate_up, shape.limit)
        y[rows, choices] = activation(gate_up, kind=shape.activation, gated=True) @ downs[expert].T
    return y.reshape(len(x), -1)


@operation(lambda products, *others, shape: products[1] // shape.routing.chosen)
def expert_sum(
    products: FloatArray,
    logits: FloatArray,
    correction: Array | None,
    router_bias: Array | None = None,
    down_bias: Array | None = None,
    expert_scale: Array | None = None,
    *,
    shape: ExpertsShape,
) -> FloatArray:
    """The weighted sum of what `expert_products` gives, with biases added: [T, width]."""
    weights, chosen = _routed(logits, correction, router_bias, shape)
    outputs = products.reshape(*chosen.shape, -1)
    if down_bias is not None:
        outputs = outputs + down_bias[chosen]
    if shape.weighs_inputs:
        weights = np.ones_like(weights)
    elif expert_scale is not None:
        weights = weights * expert_scale[chosen]
    summed: FloatArray = (outputs * weights[..., None]).sum(1)
    return summed


def _routed(
    logits: FloatArray, correction: Array | None, router_bias: Array | None, shape: ExpertsShape
) -> tuple[FloatArray, IntArray]:
    return routed(logits if router_bias is None else logits + router_bias, correction, shape.routing)


def clamped(gate_up: FloatArray, limit: float) -> FloatArray:
    """Interleaved gates and ups [T, 2 * inner] -> the gates, then the ups, as `ExpertsShape.limit` says."""
    gates, ups = np.minimum(gate_up[:, ::2], limit), np.clip(gate_up[:, 1::2], -limit, limit)
    return np.concatenate((gates, ups + np.float32(1)), 1).astype(np.float32)


def routed(logits: FloatArray, correction: Array | None, routing: Routing) -> tuple[FloatArray, IntArray]:
    """logits [T, experts] -> weights and numbers [T, chosen] of the experts of each row."""
    if routing.is_sigmoid:
        scores = 1 / (1 + np.exp(-logits))
    else:
        scores = np.exp(logits - logits.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
    candidates = scores + (np.float32(0) if correction is None else correction)
    if routing.groups > 1:
        grouped = candidates.reshape(len(logits), routing.groups, -1)
        best = -np.sort(-grouped, -1)[..., : routing.group_best].sum(-1)
        # Stable sorts, here and below: of equal scores the first is chosen, whatever else is in the step.
        outside = np.argsort(-best, -1, kind="stable")[:, routing.chosen_groups :]
        np.put_along_axis(grouped, outside[..., None], -np.inf, 1)
    chosen = np.argsort(-candidates, -1, kind="stable")[:, : routing.chosen]
    # Correction and groups decide only which experts are chosen; the weights are the scores themselves.
    weights = np.take_along_axis(scores, chosen, -1)
    if routing.is_normalised:
        weights = weights / (weights.sum(-1, keepdims=True) + _LEAST)
    return (weights * np.float32(routing.scale)).astype(np.float32), chosen.astype(np.int32)
