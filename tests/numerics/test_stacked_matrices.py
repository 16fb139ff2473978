"""Products with stacks of matrices: experts, routed as torch does it, and the heads of latent attention."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from kernel_runs import computed, numbers, packed_stack
from numpy.typing import NDArray

from mindbatch.kernels.memory import BFLOAT16, FLOAT32, INT8, NumberType
from mindbatch.kernels.native import NativeKernels
from mindbatch.kernels.native_library import NativeLibrary
from mindbatch.kernels.operations.attention import head_products, latent_heads
from mindbatch.kernels.operations.experts import experts, router_logits
from mindbatch.kernels.shapes import ExpertsShape, HeadProductsShape, Routing

Floats = NDArray[np.float32]
TOLERANCE = {FLOAT32: 1e-5, BFLOAT16: 0.03, INT8: 0.1}


class Layer:
    """Random experts of kernels, and the same in float64."""

    def __init__(
        self,
        library: NativeLibrary,
        kind: NumberType,
        routing: Routing,
        hidden: int,
        inner: int,
        limit: float = 0.0,
        form: str = "",
    ) -> None:
        """limit: with one the layer has biases, too.

        form: "inputs" weighs these, "logits" has them apart and a scale of each expert.
        """
        generator, count = np.random.default_rng(hidden), routing.experts
        self.routing = routing
        self.router = generator.standard_normal((count, hidden)).astype(np.float32)
        # Low enough that a score of 0 would be chosen before many.
        self.correction = generator.standard_normal(count).astype(np.float32) / 4 - 1
        self.up = (generator.standard_normal((count, 2 * inner, hidden)) / hidden**0.5).astype(np.float32)
        self.down = (generator.standard_normal((count, hidden, inner)) / inner**0.5).astype(np.float32)
        kernels = NativeKernels(library, kind)
        stacks = [packed_stack(kernels, matrices) for matrices in (self.up, self.down)]
        correction = self.correction if routing.is_sigmoid else None
        activation = "quick_gelu" if limit else "silu"
        self.form, has_logits = form, form == "logits"
        has_biases = bool(limit) or has_logits
        self.shape = ExpertsShape(routing, inner, activation, has_biases, limit, form == "inputs", has_logits)
        self.kernels, self.biases = kernels, []
        if limit:
            sizes = ((count,), (count, 2 * inner), (count, hidden))
            self.biases = [generator.standard_normal(size).astype(np.float32) / 2 for size in sizes]
        scale = (1 + generator.standard_normal(count) / 4).astype(np.float32)
        self.scale = scale if has_logits else None
        self.added = [*(self.biases or [None] * 3), self.scale] if has_biases else []
        self.correction_or_none, self.stacks = correction, stacks

    def __call__(self, x: Floats) -> Floats:
        return computed(self.kernels, lambda x: self._of(x, *self.stacks), x)[0]

    def by_numpy(self, x: Floats) -> Floats:
        """Of the same matrices, not packed."""
        found: Floats = self._of(x, self.up, self.down)
        return found

    def _of(self, x: Any, up: Any, down: Any) -> Any:
        router = router_logits(x, self.router) if self.form == "logits" else self.router
        return experts(x, router, self.correction_or_none, up, down, *self.added, shape=self.shape)

    def expected(self, x: Floats) -> NDArray[np.float64]:
        y, limit = np.zeros(x.shape), self.shape.limit
        of_router, of_up, of_down = self.biases or [np.zeros((self.routing.experts, 1))[:, :1]] * 3
        for row, logits in enumerate(x.astype(np.float64) @ self.router.T + of_router.reshape(-1)):
            for expert, weight in self._chosen(logits).items():
                factor = weight if self.form == "inputs" else 1.0
                both = self.up[expert] @ (factor * x[row].astype(np.float64)) + of_up[expert]
                if limit:
                    gate, up = np.minimum(both[::2], limit), np.clip(both[1::2], -limit, limit) + 1
                    active = gate / (1 + np.exp(-1.702 * gate)) * up
                else:
                    gate, up = np.split(both, 2)
                    active = gate / (1 + np.exp(-gate)) * up
                weight = weight if self.scale is None else weight * self.scale[expert]
                y[row] += weight / factor * (self.down[expert] @ active + of_down[expert])
        return y

    def _chosen(self, logits: NDArray[np.float64]) -> dict[int, float]:
        its = self.routing
        exponents = np.exp(logits - logits.max())
        scores = 1 / (1 + np.exp(-logits)) if its.is_sigmoid else exponents / exponents.sum()
        candidates = scores + self.correction if its.is_sigmoid else scores.copy()
        if its.groups > 1:
            groups = candidates.reshape(its.groups, -1)
            best = np.sort(groups)[:, -its.group_best :].sum(-1)
            groups[np.argsort(-best)[its.chosen_groups :]] = -np.inf
        chosen = np.argsort(-candidates)[: its.chosen]
        weights = scores[chosen] / scores[chosen].sum() if its.is_normalised else scores[chosen]
        return dict(zip(chosen.tolist(), (weights * its.scale).tolist(), strict=True))


LAYERS = {
    "softmax": (Routing(6, 2), 40, 20),
    "many": (Routing(193, 3, is_normalised=False), 33, 7),
    "one": (Routing(9, 1), 64, 33),
    "all": (Routing(4, 4), 32, 16),
    "clamped": (Routing(5, 3), 36, 13, 0.7),
    "inputs": (Routing(7, 2, is_sigmoid=False, is_normalised=False), 36, 13, 0.0, "inputs"),
    "logits": (Routing(6, 3), 40, 20, 0.0, "logits"),
    "groups": (Routing(12, 3, True, True, 2.5, groups=4, chosen_groups=2, group_best=2), 24, 18),
}


@pytest.mark.parametrize("kind", TOLERANCE, ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", LAYERS)
def test_rows_are_what_their_experts_say_whatever_is_beside(
    library: NativeLibrary, name: str, kind: NumberType
) -> None:
    layer = Layer(library, kind, *LAYERS[name])
    x = np.random.default_rng(1).standard_normal((150, LAYERS[name][1])).astype(np.float32)
    together = layer(x)
    assert np.abs(together - layer.expected(x)).max() < TOLERANCE[kind]
    assert np.abs(layer.by_numpy(x) - layer.expected(x)).max() < TOLERANCE[FLOAT32]
    ends = [0, 1, 2, 5, 22, 70, 150]
    parts = np.concatenate([layer(x[first:last]) for first, last in pairwise(ends)])
    assert parts.tobytes() == together.tobytes()


def test_settings_that_contradict_each_other_fail(library: NativeLibrary) -> None:
    with pytest.raises(RuntimeError, match="mb_experts failed"):
        Layer(library, FLOAT32, Routing(4, 5), 8, 4)(np.zeros((2, 8), np.float32))


SHAPES = [
    HeadProductsShape(5, 12, 0, 12, 33),
    HeadProductsShape(16, 21, 5, 16, 40),
    HeadProductsShape(2, 9, 3, 4, 70),
]


def expected(shape: HeadProductsShape, x: Floats, matrices: Floats) -> NDArray[np.float64]:
    heads = x[:, : shape.heads * shape.stride].reshape(len(x), shape.heads, shape.stride)
    heads = heads[:, :, shape.first : shape.first + shape.inputs].astype(np.float64)
    return np.einsum("thi,hoi->tho", heads, matrices).reshape(len(x), -1)


@pytest.mark.parametrize("kind", TOLERANCE, ids=lambda kind: kind.name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_are_what_their_heads_say_in_any_step(
    library: NativeLibrary, shape: HeadProductsShape, kind: NumberType
) -> None:
    kernels = NativeKernels(library, kind)
    matrices = numbers(shape.heads, shape.outputs, shape.inputs) / shape.inputs**0.5
    given, stack = numbers(40, shape.heads * shape.stride + 3), packed_stack(kernels, matrices)

    def products(x: Any) -> Any:
        return head_products(x, stack, shape=shape)

    together = computed(kernels, products, given)[0]
    assert np.abs(together - expected(shape, given, matrices)).max() < TOLERANCE[kind]
    parts = [computed(kernels, products, given[first:last])[0] for first, last in pairwise((0, 1, 2, 7, 40))]
    assert np.concatenate(parts).tobytes() == together.tobytes()


@pytest.mark.slow
def test_numpy_and_ascend_give_the_same() -> None:
    from mindspore import Tensor

    from mindbatch.kernels.ascend.kernels import AscendKernels
    from mindbatch.parallel.context import initialise

    initialise("CPU")
    queries, absorbed, keys, latents = numbers(6, 20), numbers(6, 14), numbers(6, 9), numbers(6, 7)
    rotated = queries[:, 16:].reshape(6, 2, 2)
    heads = np.concatenate((rotated, absorbed.reshape(6, 2, 7)), 2).reshape(6, -1)
    key = np.concatenate((keys[:, 7:], latents), 1)
    joined, kernels = np.concatenate((heads, key, key), 1), AscendKernels(FLOAT32)
    for shape in SHAPES:
        matrices = numbers(shape.heads, shape.outputs, shape.inputs)
        x = numbers(3, shape.heads * shape.stride + 3)
        stack = Tensor.from_numpy(packed_stack(kernels, matrices))
        found = kernels.cell("head_products", shape=shape)(Tensor(x), stack).asnumpy()
        np.testing.assert_allclose(found, expected(shape, x, matrices), atol=1e-4)
        by_numpy = head_products(x, matrices, shape=shape)
        np.testing.assert_allclose(by_numpy, expected(shape, x, matrices), atol=1e-4)
    given = (queries, absorbed, keys, latents)
    cell = kernels.cell("latent_heads", heads=2, rope=2)
    np.testing.assert_array_equal(cell(*map(Tensor, given)).asnumpy(), joined)
    np.testing.assert_array_equal(latent_heads(*given, heads=2, rope=2), joined)


def test_what_lies_outside_a_row_is_refused(library: NativeLibrary) -> None:
    kernels, shape = NativeKernels(library), HeadProductsShape(2, 3, 0, 3, 2)
    stack = packed_stack(kernels, numbers(2, 2, 3))
    with pytest.raises(RuntimeError, match="mb_head_products failed"):
        computed(kernels, lambda x: head_products(x, stack, shape=shape), numbers(1, 4))
