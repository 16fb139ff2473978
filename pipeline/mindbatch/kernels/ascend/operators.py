"""The fused operators of norms, rotation, activations and experts, and linear layers, on Ascend."""

import numpy as np
from mindspore import Tensor, mint, nn, ops
from mindspore import dtype as mstype

from mindbatch.kernels.mindspore_kernels import constant
from mindbatch.kernels.shapes import AttentionShape, ExpertsShape, Routing

HALF_ROTATION = 2
"""ApplyRotaryPosEmb's cos_format: a row of [cos, cos] for each token, the halves of a head rotated."""


class LinearCell(nn.Cell):
    """x W^T + b; without a bias nothing is added."""

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.product = ops.MatMul(transpose_b=True)

    def construct(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y = self.product(x, weight)
        return y if bias.shape[0] == 1 else y + bias


class RmsNormCell(nn.Cell):
    """The fused RMS norm; a float32 weight (Gemma's 1 + weight) makes the norm a float32 one."""

    def __init__(self, epsilon: float) -> None:
        super().__init__(auto_prefix=False)
        self.norm = ops.RmsNorm(epsilon)

    def construct(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if weight.dtype == x.dtype:
            return self.norm(x, weight)[0]
        return ops.cast(self.norm(ops.cast(x, weight.dtype), weight)[0], x.dtype)


class AddRmsNorm(nn.Cell):
    """(norm(x + residual), x + residual); one operator where the types are the same."""

    def __init__(self, epsilon: float) -> None:
        super().__init__(auto_prefix=False)
        self.epsilon = epsilon
        self.fused = ops.auto_generate.AddRmsNorm()
        self.norm = RmsNormCell(epsilon)

    def construct(self, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        if len(residual.shape) == 1:
            return self.norm(x, weight, bias), x
        if weight.dtype == x.dtype:
            normed, _, total = self.fused(x, residual, weight, self.epsilon)
            return normed, total
        total = x + residual
        return self.norm(total, weight, bias), total


class LayerNormCell(nn.Cell):
    """The fused layer norm, which computes in float32 whatever it is given."""

    def __init__(self, epsilon: float) -> None:
        super().__init__(auto_prefix=False)
        self.epsilon = epsilon
        self.norm = ops.auto_generate.LayerNormExt()

    def construct(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return self.norm(x, weight.shape, weight, bias, self.epsilon)[0]


class AddLayerNorm(nn.Cell):
    """(norm(x + residual), x + residual)."""

    def __init__(self, epsilon: float) -> None:
        super().__init__(auto_prefix=False)
        self.norm = LayerNormCell(epsilon)

    def construct(self, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        total = x if len(residual.shape) == 1 else x + residual
        return self.norm(total, weight, bias), total


class RotaryCell(nn.Cell):
    """Norms of query and key heads where the model has them, then the fused rotation.

    The operator rotates all that it is given, by halves: the rotated part of each head is taken out for it.
    The angles stay float32, which it takes with half-precision heads. It wants a number of tokens for each
    sequence; all of them are one sequence here, for every token brings its own row of angles.
    Pairs of neighbours are first moved to the halves of what is rotated, and stay there: query and key alike,
    so that their product is the same.
    """

    def __init__(
        self, shape: AttentionShape, epsilon: float, is_interleaved: bool, *, in_halves: bool
    ) -> None:
        super().__init__(auto_prefix=False)
        self.head_dim = shape.head_dim
        self.is_interleaved, self.in_halves = is_interleaved, in_halves
        self.widths = shape.widths
        self.norm = RmsNormCell(epsilon)
        self.no_bias = constant([0.0], np.float32)
        self.rotate = ops.auto_generate.ApplyRotaryPosEmb(HALF_ROTATION)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        if weight.shape[0] == 1:
            return x
        return self.norm(x.reshape(x.shape[0], -1, weight.shape[0]), weight, self.no_bias).reshape(x.shape)

    def _unpaired(self, x: Tensor, width: int) -> Tensor:
        if not self.is_interleaved:
            return x
        pairs = x.reshape(x.shape[0], -1, width // 2, 2)
        return mint.transpose(pairs, 2, 3).reshape(x.shape)

    def _rotated(
        self, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, width: int
    ) -> tuple[Tensor, Tensor]:
        """Heads of `width` numbers each, side by side."""
        query, key = self._unpaired(query, width), self._unpaired(key, width)
        tokens = ops.full((1,), query.shape[0], dtype=mstype.int32)
        return self.rotate(query, key, ops.cat((cos, cos), 1), ops.cat((sin, sin), 1), tokens)

    def _parts(self, x: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Splits heads [T, heads * head_dim] into the first numbers [T, heads * width], and the rest."""
        heads = x.reshape(x.shape[0], -1, self.head_dim)
        first, rest = mint.split(heads, (width, self.head_dim - width), -1)
        return first.reshape(x.shape[0], -1), rest

    def _joined(self, first: Tensor, rest: Tensor) -> Tensor:
        heads = ops.cat((first.reshape(*rest.shape[:2], -1), rest), -1)
        return heads.reshape(rest.shape[0], -1)

    def construct(
        self, qkv: Tensor, cos: Tensor, sin: Tensor, query_norm: Tensor, key_norm: Tensor
    ) -> Tensor:
        query, key, value = mint.split(qkv, self.widths, -1)
        query, key = self._normed(query, query_norm), self._normed(key, key_norm)
        width = 2 * cos.shape[1]
        if width == self.head_dim and not self.in_halves:
            query, key = self._rotated(query, key, cos, sin, width)
        else:
            width = self.head_dim // 2 if self.in_halves else width
            query, key = self._rotated_in_part(query, key, cos, sin, width)
        return ops.cat((query, key, value), 1)

    def _rotated_in_part(
        self, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, width: int
    ) -> tuple[Tensor, Tensor]:
        """The first `width` numbers of each head, and where each half has angles of its own, the others."""
        query, rest_of_query = self._parts(query, width)
        key, rest_of_key = self._parts(key, width)
        if self.in_halves:
            (cos, other_cos), (sin, other_sin) = mint.chunk(cos, 2, -1), mint.chunk(sin, 2, -1)
            others = (rest_of_query.reshape(query.shape), rest_of_key.reshape(key.shape))
            second_query, second_key = self._rotated(*others, other_cos, other_sin, width)
            rest_of_query = second_query.reshape(rest_of_query.shape)
            rest_of_key = second_key.reshape(rest_of_key.shape)
        query, key = self._rotated(query, key, cos, sin, width)
        return self._joined(query, rest_of_query), self._joined(key, rest_of_key)


class ActivationCell(nn.Cell):
    """act(x), or act(gate) * up for x = [gate, up]; gated SiLU is one operator."""

    def __init__(self, kind: str, gated: bool) -> None:
        super().__init__(auto_prefix=False)
        self.kind = kind
        self.gated = gated
        self.swiglu = ops.auto_generate.Swiglu()
        self.gelu = ops.auto_generate.GeluExt()

    def _activate(self, x: Tensor) -> Tensor:
        if self.kind == "gelu_tanh":
            return self.gelu(x, "tanh")
        if self.kind == "gelu":
            return self.gelu(x, "none")
        if self.kind == "quick_gelu":
            return x * ops.sigmoid(x * 1.702)
        return ops.silu(x) if self.kind == "silu" else ops.relu(x)

    def construct(self, x: Tensor) -> Tensor:
        if not self.gated:
            return self._activate(x)
        if self.kind == "silu":
            return self.swiglu(x, -1)
        gate, up = mint.chunk(x, 2, -1)
        return self._activate(gate) * up


_COUNTS = 2
"""MoeInitRoutingV2 gives how many rows each expert has, not where they end."""
_OF_ROWS, _ONE_OUTPUT, _BY_COUNTS = 0, 3, 1
"""GroupedMatmulV4: groups are of rows, their outputs one tensor, their sizes given as counts."""


class ExpertsCell(nn.Cell):
    """Computes `experts`: rows sorted by expert, one product over all experts, and back.

    The operators and their arguments are those with which MindFormers 1.9 runs such models.
    up [experts, width, 2 * inner], gates first, down [experts, inner, width]."""

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
        rows, positions, counts, _ = self.sort(x, chosen, 0, 0, self.experts, 0, _COUNTS, True)
        counts = ops.cast(counts, mstype.int64)
        gate_up = self._biased(self._of_each(rows, up, counts), chosen, *biases[1:2])
        if self.limit > 0:
            gate_up = self._clamped(gate_up)
        outputs = self._biased(self._of_each(self.activation(gate_up), down, counts), chosen, *biases[2:3])
        y = self.combine(outputs, positions, ops.cast(weights, x.dtype), False, None)
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
