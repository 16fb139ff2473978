"""Compares the cells of the Ascend kernels in half precision with NumPy in float32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn

from ascend_check.models import FloatArray
from ascend_check.runs import GEOMETRY, STEPS, step_of
from mindbatch.engine.model_runner import flatten
from mindbatch.kernels.mindspore_kernels import MindSporeKernels
from mindbatch.kernels.operations import attention, experts, rotation
from mindbatch.kernels.recording import OPERATIONS
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
    """Computes attention with a cache and heads of its own."""

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
    """Makes random inputs in the kernels' type and runs cells on them."""

    def __init__(self, kernels: MindSporeKernels) -> None:
        self.kernels = kernels
        self._generator = np.random.default_rng(0)

    def numbers(self, *shape: int) -> FloatArray:
        """Draws random numbers that are exact in the kernels' type."""
        numbers = self._generator.standard_normal(shape, np.float32).astype(self.kernels.dtype)
        return np.asarray(numbers.astype(np.float32))

    def tensor(self, values: FloatArray) -> Tensor:
        return Tensor.from_numpy(np.ascontiguousarray(values.astype(self.kernels.dtype)))

    def of(self, operation: str, *inputs: FloatArray | None, **settings: Any) -> list[Pair]:
        """Pairs the outputs of a cell with those of the NumPy function; None is a missing vector."""
        absent = self.kernels.absent()
        tensors = [absent if array is None else self.tensor(array) for array in inputs]
        outputs = _several(self.kernels.cell(operation, **settings)(*tensors))
        expected = _several(OPERATIONS[operation](*inputs, **settings))
        return [(_floats(array), theirs) for array, theirs in zip(outputs, expected, strict=True)]


def _several(output: Any) -> tuple[Any, ...]:
    return output if isinstance(output, tuple) else (output,)


def _floats(output: Tensor) -> FloatArray:
    return np.asarray(output.asnumpy().astype(np.float32))


def comparisons(kernels: MindSporeKernels) -> Iterator[tuple[str, Pair]]:
    """Yields (name, (the operator's result, NumPy's result)) for each fused operator."""
    bench = _Bench(kernels)
    yield from _norms(bench)
    yield from _activations(bench)
    yield "ApplyRotaryPosEmb", _rotation(bench)
    yield "GroupedMatmulV4, experts", _experts(bench)
    for number, name in enumerate(("FlashAttentionScore", "PagedAttention, chunks", "PagedAttention")):
        yield name, _attention(bench, number)


def _norms(bench: _Bench) -> Iterator[tuple[str, Pair]]:
    x, residual, weight, bias = *(bench.numbers(TOKENS, 64) for _ in "xr"), *(bench.numbers(64) for _ in "wb")
    [pair] = bench.of("norm", x, weight, None, epsilon=EPSILON, centred=False)
    yield "RmsNorm", pair
    pairs = bench.of("add_norm", x, residual, weight, None, epsilon=EPSILON, centred=False)
    yield from zip(("AddRmsNorm", "AddRmsNorm, sum"), pairs, strict=True)
    [pair] = bench.of("norm", x, weight, bias, epsilon=EPSILON, centred=True)
    yield "LayerNorm", pair


def _activations(bench: _Bench) -> Iterator[tuple[str, Pair]]:
    x = bench.numbers(TOKENS, 64)
    [pair] = bench.of("activation", x, kind="silu", gated=True)
    yield "Swiglu", pair
    for kind in ("gelu_tanh", "gelu"):
        [pair] = bench.of("activation", x, kind=kind, gated=False)
        yield f"Gelu, {kind}", pair


def _rotation(bench: _Bench) -> Pair:
    """Compares rotary positions, whose angles are float32 in any type."""
    qkv = bench.numbers(TOKENS, SHAPE.qkv_width)
    angles = np.linspace(0, 60, TOKENS * SHAPE.head_dim // 2, dtype=np.float32).reshape(TOKENS, -1)
    cos, sin = np.cos(angles), np.sin(angles)
    settings = {"shape": SHAPE, "epsilon": EPSILON, "is_interleaved": False, "in_halves": False}
    absent = bench.kernels.absent()
    cell = bench.kernels.cell("rotary", **settings)
    outputs = cell(bench.tensor(qkv), Tensor(cos), Tensor(sin), absent, absent)
    return _floats(outputs), rotation.rotary(qkv, cos, sin, None, None, **settings)


def _experts(bench: _Bench) -> Pair:
    kernels, count, width = bench.kernels, ROUTING.experts, 64
    x, router = bench.numbers(TOKENS, width), bench.numbers(count, width)
    up, down = bench.numbers(count, 2 * INNER, width), bench.numbers(count, width, INNER)
    up, down = (np.asarray((array / 8).astype(kernels.dtype).astype(np.float32)) for array in (up, down))
    stacks = []
    for matrices in (up, down):
        stacks.append(kernels.packed_stack(*matrices.shape))
        for expert, matrix in enumerate(matrices):
            kernels.pack(stacks[-1], expert * matrices.shape[1], matrix.astype(kernels.dtype))
    shape = ExpertsShape(ROUTING, INNER, "silu")
    cell = kernels.cell("experts", shape=shape)
    outputs = cell(bench.tensor(x), Tensor(router), kernels.absent(), *map(Tensor.from_numpy, stacks))
    return _floats(outputs), experts.experts(x, router, None, up, down, shape=shape)


def _attention(bench: _Bench, number: int) -> Pair:
    """Compares attention for one of STEPS with a filled cache."""
    kernels, spans, size = bench.kernels, STEPS[number], GEOMETRY.block_size
    cache = (GEOMETRY.num_blocks + 1, size, SHAPE.kv_heads, SHAPE.head_dim)
    keys, values = bench.numbers(*cache), bench.numbers(*cache)
    step, width = step_of(spans), TABLE_WIDTH
    shape: StepShape = kernels.step_shape(spans, lambda tokens: max(tokens, TOKENS) + 8, width * size, SHAPE)
    qkv = np.zeros((shape.tokens, SHAPE.qkv_width), np.float32)
    qkv[: step.num_tokens] = bench.numbers(step.num_tokens, SHAPE.qkv_width)
    of_graph = kernels.for_graph(shape.graph)
    cell = _Attend(of_graph.cell("attention", shape=SHAPE), *map(bench.tensor, (qkv, keys, values)))
    batch = flatten(step, (shape.tokens, shape.tokens), size, width)
    arrays = kernels.graph_inputs(batch, shape, GEOMETRY)
    outputs = of_graph.step_graph(cell, GEOMETRY)(*map(Tensor, arrays)).asnumpy()
    layout = (batch.slots, batch.rows, batch.block_tables, batch.lengths)
    expected = attention.attention(qkv, keys, values, *layout, shape=SHAPE)
    return outputs[: step.num_tokens], expected[: step.num_tokens]
