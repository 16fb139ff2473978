"""Each cell of the Ascend kernels beside its twin: the inputs in half precision, the twin in float32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn

from mindbatch.ascend_check import twins
from mindbatch.ascend_check.models import FloatArray
from mindbatch.ascend_check.runs import GEOMETRY, PROMPTS, STEPS, TABLES, step_of
from mindbatch.engine.batch import flatten
from mindbatch.kernels.mindspore_kernels import MindSporeKernels
from mindbatch.kernels.shapes import AttentionShape, ExpertsShape, Routing
from mindbatch.kernels.step import StepShape

ROUTING = Routing(experts=4, chosen=2)
INNER = 16
SHAPE = AttentionShape(heads=4, kv_heads=2, head_dim=32, scale=0.2)
EPSILON = 1e-5
TOKENS = 16
TABLE_WIDTH = 4
Pair = tuple[FloatArray, FloatArray]


class _Attend(nn.Cell):
    """Attention over a cache and a step's heads that it holds itself."""

    def __init__(self, attend: nn.Cell, heads: Tensor, keys: Tensor, values: Tensor) -> None:
        super().__init__(auto_prefix=False)
        self.attend = attend
        self.heads = Parameter(heads, name="heads", requires_grad=False)
        self.keys = Parameter(keys, name="keys", requires_grad=False)
        self.values = Parameter(values, name="values", requires_grad=False)

    def construct(
        self, ids: Tensor, positions: Tensor, step: tuple[Tensor, ...], adapters: tuple[Tensor, ...]
    ) -> Tensor:
        return self.attend(self.heads, self.keys, self.values, *step)


class _Bench:
    """Random inputs in the kernels' type, and what cells make of them."""

    def __init__(self, kernels: MindSporeKernels) -> None:
        self.kernels = kernels
        self._generator = np.random.default_rng(0)

    def numbers(self, *shape: int) -> FloatArray:
        """Random numbers that the kernels' type has exactly."""
        found = self._generator.standard_normal(shape, np.float32).astype(self.kernels.dtype)
        return np.asarray(found.astype(np.float32))

    def tensor(self, values: FloatArray) -> Tensor:
        return Tensor.from_numpy(np.ascontiguousarray(values.astype(self.kernels.dtype)))

    def output(self, cell: nn.Cell, *inputs: FloatArray) -> list[FloatArray]:
        found: Any = cell(*map(self.tensor, inputs))
        outputs = found if isinstance(found, tuple) else (found,)
        return [np.asarray(each.asnumpy().astype(np.float32)) for each in outputs]


def comparisons(kernels: MindSporeKernels) -> Iterator[tuple[str, Pair]]:
    """(name, (what the operator gave, what its twin gives)) of every fused operator; one at a time."""
    bench = _Bench(kernels)
    yield from _norms(bench)
    yield from _activations(bench)
    yield "ApplyRotaryPosEmb", _rotation(bench)
    yield "GroupedMatmulV4, experts", _experts(bench)
    for number, name in enumerate(("FlashAttentionScore", "PagedAttention, chunks", "PagedAttention")):
        yield name, _attention(bench, number)


def _norms(bench: _Bench) -> Iterator[tuple[str, Pair]]:
    x, residual, weight, bias = *(bench.numbers(TOKENS, 64) for _ in "xr"), *(bench.numbers(64) for _ in "wb")
    total = np.asarray((x + residual).astype(bench.kernels.dtype).astype(np.float32))
    (found,) = bench.output(bench.kernels.cell("norm", epsilon=EPSILON, centred=False), x, weight, bias[:1])
    yield "RmsNorm", (found, twins.rms_norm(x, weight, EPSILON))
    joined = bench.kernels.cell("add_norm", epsilon=EPSILON, centred=False)
    found, summed = bench.output(joined, x, residual, weight, bias[:1])
    yield "AddRmsNorm", (found, twins.rms_norm(total, weight, EPSILON))
    yield "AddRmsNorm, sum", (summed, total)
    (found,) = bench.output(bench.kernels.cell("norm", epsilon=EPSILON, centred=True), x, weight, bias)
    yield "LayerNorm", (found, twins.layer_norm(x, weight, bias, EPSILON))


def _activations(bench: _Bench) -> Iterator[tuple[str, Pair]]:
    x = bench.numbers(TOKENS, 64)
    (found,) = bench.output(bench.kernels.cell("activation", kind="silu", gated=True), x)
    yield "Swiglu", (found, twins.gated("silu", x))
    for kind in ("gelu_tanh", "gelu"):
        (found,) = bench.output(bench.kernels.cell("activation", kind=kind, gated=False), x)
        yield f"Gelu, {kind}", (found, twins.activated(kind, x))


def _rotation(bench: _Bench) -> Pair:
    heads, kv, size = SHAPE.heads, SHAPE.kv_heads, SHAPE.head_dim
    qkv = bench.numbers(TOKENS, heads + 2 * kv, size)
    angles = np.linspace(0, 60, TOKENS * size // 2, dtype=np.float32).reshape(TOKENS, -1)
    cell = bench.kernels.cell("rotary", shape=SHAPE, epsilon=EPSILON, is_interleaved=False, in_halves=False)
    absent = bench.kernels.absent()
    flat = bench.tensor(qkv.reshape(TOKENS, -1))
    found = cell(flat, Tensor(np.cos(angles)), Tensor(np.sin(angles)), absent, absent)
    turned = twins.rotated(qkv[:, : heads + kv], np.cos(angles), np.sin(angles))
    expected = np.concatenate((turned, qkv[:, heads + kv :]), 1).reshape(TOKENS, -1)
    return np.asarray(found.asnumpy().astype(np.float32)), expected


def _experts(bench: _Bench) -> Pair:
    kernels, count, width = bench.kernels, ROUTING.experts, 64
    x, router = bench.numbers(TOKENS, width), bench.numbers(count, width)
    up, down = bench.numbers(count, 2 * INNER, width), bench.numbers(count, width, INNER)
    up, down = (np.asarray((each / 8).astype(kernels.dtype).astype(np.float32)) for each in (up, down))
    stacks = []
    for matrices in (up, down):
        stacks.append(kernels.packed_stack(*matrices.shape))
        for expert, matrix in enumerate(matrices):
            kernels.pack(stacks[-1], expert * matrices.shape[1], matrix.astype(kernels.dtype))
    cell = kernels.cell("experts", shape=ExpertsShape(ROUTING, INNER, "silu"))
    found = cell(bench.tensor(x), Tensor(router), kernels.absent(), *map(Tensor.from_numpy, stacks))
    return np.asarray(found.asnumpy().astype(np.float32)), twins.experts(
        x, router, (up, down), ROUTING.chosen
    )


def _attention(bench: _Bench, number: int) -> Pair:
    """One of STEPS; what came before is in the cache already."""
    kernels, spans, size = bench.kernels, STEPS[number], GEOMETRY.block_size
    heads, kv, dim = SHAPE.heads, SHAPE.kv_heads, SHAPE.head_dim
    keys = [bench.numbers(len(prompt), kv, dim) for prompt in PROMPTS]
    values = [bench.numbers(len(prompt), kv, dim) for prompt in PROMPTS]
    caches = np.zeros((2, (GEOMETRY.num_blocks + 1) * size, kv, dim), np.float32)
    for known, seen, table, (start, _) in zip(keys, values, TABLES, spans, strict=True):
        slots = twins.slots_of(table, start, size)
        caches[0][slots], caches[1][slots] = known[:start], seen[:start]
    step = step_of(spans)
    width = TABLE_WIDTH
    shape: StepShape = kernels.step_shape(spans, lambda tokens: max(tokens, TOKENS) + 8, width * size, SHAPE)
    query = bench.numbers(step.num_tokens, heads, dim)
    joined = [
        np.concatenate([each[start:stop] for each, (start, stop) in zip(numbers, spans, strict=True)])
        for numbers in (keys, values)
    ]
    qkv = np.zeros((shape.tokens, heads + 2 * kv, dim), np.float32)
    qkv[: step.num_tokens] = np.concatenate((query, *joined), 1)
    of_graph = kernels.for_graph(shape.graph)
    cached = (bench.tensor(each.reshape(-1, size, kv, dim)) for each in caches)
    cell = _Attend(
        of_graph.cell("attention", shape=SHAPE), bench.tensor(qkv.reshape(shape.tokens, -1)), *cached
    )
    arrays = kernels.graph_inputs(flatten(step, (shape.tokens, shape.tokens), size, width), shape, GEOMETRY)
    found = of_graph.step_graph(cell, GEOMETRY)(*map(Tensor, arrays)).asnumpy()[: step.num_tokens]
    expected = twins.causal_attention(query, keys, values, spans, SHAPE.scale)
    return found, expected.reshape(step.num_tokens, -1)
