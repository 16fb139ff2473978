"""Layers with a state of each sequence compute what their formula says, however a sequence is divided."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from kernel_runs import computed, numbers
from numpy.typing import NDArray

from mindbatch.kernels.interface import ProgramKernels
from mindbatch.kernels.native import NativeKernels
from mindbatch.kernels.native_library import NativeLibrary
from mindbatch.kernels.operations.recurrent import causal_convolution, gated, gated_delta
from mindbatch.kernels.reference import ReferenceKernels
from mindbatch.kernels.shapes import ConvolutionShape, DeltaShape

Floats = NDArray[np.float32]
Integers = NDArray[np.int32]
Compute = Callable[..., Any]
CONVOLUTIONS = [
    ConvolutionShape(7, 2),
    ConvolutionShape(1100, 3),
    ConvolutionShape(96, 4, is_activated=True),
    ConvolutionShape(33, 9, is_activated=True),
]
DELTAS = [DeltaShape(1, 1, 3, 5), DeltaShape(2, 4, 16, 16), DeltaShape(3, 3, 7, 40), DeltaShape(2, 6, 32, 24)]
NUM_SLOTS = 5


@pytest.fixture
def native(library: NativeLibrary) -> NativeKernels:
    return NativeKernels(library)


class Convolved:
    """A convolution with its weights."""

    def __init__(self, shape: ConvolutionShape, *, has_bias: bool) -> None:
        self.shape, self.width = shape, shape.channels + 3
        self.weight = numbers(shape.kernel, shape.channels)
        self.bias = numbers(shape.channels) if has_bias else None

    def inputs(self, tokens: int) -> list[Floats]:
        return [numbers(tokens, self.width)]

    def over(self, state: Floats) -> Compute:
        def compute(x: Any, *step: Any) -> Any:
            return causal_convolution(x, self.weight, self.bias, state, *step, shape=self.shape)

        return compute

    def expected(self, x: Floats) -> Floats:
        """Of a whole sequence, by NumPy's own convolution."""
        outputs = np.stack(
            [
                np.convolve(x[:, channel], self.weight[::-1, channel])[: len(x)]
                for channel in range(self.shape.channels)
            ],
            1,
        )
        outputs = outputs if self.bias is None else outputs + self.bias
        return outputs / (1 + np.exp(-outputs)) if self.shape.is_activated else outputs


class Delta:
    """A gated delta rule with its parameters."""

    def __init__(self, shape: DeltaShape) -> None:
        self.shape = shape
        self.decay, self.bias = -np.exp(numbers(shape.value_heads)), numbers(shape.value_heads)

    def inputs(self, tokens: int) -> list[Floats]:
        shape = self.shape
        width = 2 * shape.key_heads * shape.key_dim + shape.value_heads * shape.value_dim
        return [numbers(tokens, width), 2 * numbers(tokens, 2 * shape.value_heads)]

    def over(self, state: Floats) -> Compute:
        def compute(qkv: Any, gates: Any, *step: Any) -> Any:
            return gated_delta(qkv, gates, self.decay, self.bias, state, *step, shape=self.shape)

        return compute

    def expected(self, qkv: Floats, gates: Floats) -> Floats:
        """Of a whole sequence in float64, with the matrix written as the paper has it."""
        shape, count = self.shape, len(qkv)
        keys = shape.key_heads * shape.key_dim
        query, key = (
            part.reshape(count, shape.key_heads, -1).astype(np.float64)
            for part in (qkv[:, :keys], qkv[:, keys : 2 * keys])
        )
        value = qkv[:, 2 * keys :].reshape(count, shape.value_heads, -1).astype(np.float64)
        outputs = np.zeros_like(value)
        for head in range(shape.value_heads):
            state = np.zeros((shape.value_dim, shape.key_dim))
            for token in range(count):
                q, k = (
                    part[token, head * shape.key_heads // shape.value_heads]
                    / np.sqrt((part[token, head * shape.key_heads // shape.value_heads] ** 2).sum() + 1e-6)
                    for part in (query, key)
                )
                beta = 1 / (1 + np.exp(-float(gates[token, head])))
                step = float(gates[token, shape.value_heads + head]) + float(self.bias[head])
                alpha = np.exp(float(self.decay[head]) * np.log1p(np.exp(step)))
                erased = np.eye(shape.key_dim) - beta * np.outer(k, k)
                state = alpha * state @ erased + beta * np.outer(value[token, head], k)
                outputs[token, head] = state @ q / shape.key_dim**0.5
        return outputs.reshape(count, -1).astype(np.float32)


LAYERS: list[Convolved | Delta] = [
    *(Convolved(shape, has_bias=has_bias) for shape in CONVOLUTIONS for has_bias in (False, True)),
    *map(Delta, DELTAS),
]


def empty_state(layer: Convolved | Delta) -> Floats:
    return np.full((NUM_SLOTS, *layer.shape.state), 99, np.float32)  # nobody reads what a slot had before


def run(
    kernels: ProgramKernels,
    layer: Convolved | Delta,
    state: Floats,
    inputs: Sequence[Floats],
    *step: Integers,
) -> Floats:
    return computed(kernels, layer.over(state), *inputs, *step)[0]


def one(start: int, stop: int, slot: int, drafted: int = 0) -> tuple[Integers, Integers, Integers]:
    """rows, positions and states of a single sequence."""
    positions = np.arange(start, stop, dtype=np.int32)
    states = np.where(positions < stop - drafted, slot, -1).astype(np.int32)
    return np.zeros_like(positions), positions, states


def pieces(inputs: Sequence[Floats], start: int, stop: int) -> list[Floats]:
    return [np.ascontiguousarray(array[start:stop]) for array in inputs]


@pytest.mark.parametrize("name", ["native", "reference"])
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: str(layer.shape))
def test_a_whole_sequence_is_what_the_formula_says(
    native: NativeKernels, layer: Convolved | Delta, name: str
) -> None:
    kernels: ProgramKernels = native if name == "native" else ReferenceKernels()
    inputs = layer.inputs(37)
    outputs = run(kernels, layer, empty_state(layer), inputs, *one(0, 37, 2))
    assert np.abs(outputs - layer.expected(*inputs)).max() < 2e-5


@pytest.mark.parametrize("cuts", [range(1, 41), [1, 2, 3, 19, 40], [39, 40], [16, 32, 40]], ids=str)
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: str(layer.shape))
def test_a_sequence_has_the_same_bits_however_it_is_divided(
    native: NativeKernels, layer: Convolved | Delta, cuts: Sequence[int]
) -> None:
    inputs = layer.inputs(40)
    whole, divided = empty_state(layer), empty_state(layer)
    together = run(native, layer, whole, inputs, *one(0, 40, 1))
    parts = [
        run(native, layer, divided, pieces(inputs, start, stop), *one(start, stop, 3))
        for start, stop in pairwise([0, *cuts])
    ]
    assert np.array_equal(np.concatenate(parts), together)
    assert np.array_equal(divided[3], whole[1])
    assert (divided[[0, 1, 2, 4]] == 99).all()


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: str(layer.shape))
def test_sequences_beside_one_another_change_nothing(native: NativeKernels, layer: Convolved | Delta) -> None:
    lengths, slots = [5, 1, 12], [4, 0, 2]
    inputs = layer.inputs(sum(lengths))
    edges = np.cumsum([0, *lengths])
    step = [np.concatenate(arrays) for arrays in zip(*map(one, [0] * 3, lengths, slots), strict=True)]
    step[0] = np.repeat(np.arange(3, dtype=np.int32), lengths)
    state = empty_state(layer)
    together = run(native, layer, state, inputs, *step)
    for slot, (first, stop) in zip(slots, pairwise(edges), strict=True):
        alone = empty_state(layer)
        outputs = run(native, layer, alone, pieces(inputs, first, stop), *one(0, stop - first, slot))
        assert np.array_equal(outputs, together[first:stop])
        assert np.array_equal(alone[slot], state[slot])


@pytest.mark.parametrize("name", ["native", "reference"])
@pytest.mark.parametrize(("certain", "drafted"), [(1, 4), (2, 1), (6, 3)])
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: str(layer.shape))
def test_drafted_tokens_are_computed_and_leave_no_trace(
    native: NativeKernels, layer: Convolved | Delta, certain: int, drafted: int, name: str
) -> None:
    kernels: ProgramKernels = native if name == "native" else ReferenceKernels()
    inputs, stop = layer.inputs(9 + certain + drafted), 9 + certain + drafted
    state, plain = empty_state(layer), empty_state(layer)
    together = run(kernels, layer, plain, inputs, *one(0, stop, 1))
    run(kernels, layer, plain, pieces(inputs, 0, 9 + certain), *one(0, 9 + certain, 1))
    run(kernels, layer, state, pieces(inputs, 0, 9), *one(0, 9, 1))
    outputs = run(kernels, layer, state, pieces(inputs, 9, stop), *one(9, stop, 1, drafted))
    assert np.array_equal(state[1], plain[1])
    assert np.array_equal(outputs, together[9:])


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: str(layer.shape))
def test_slots_outside_the_state_are_refused(native: NativeKernels, layer: Convolved | Delta) -> None:
    for slot in (NUM_SLOTS, -1):
        state = empty_state(layer)
        with pytest.raises(RuntimeError, match="failed in a step of 3 tokens"):
            run(native, layer, state, layer.inputs(3), *one(0, 3, slot))
        assert (state == 99).all()


@pytest.mark.parametrize("kind", ["identity", "sigmoid", "silu"])
@pytest.mark.parametrize(("width", "norm"), [(20, None), (40, 8), (48, 48), (33, 11)])
def test_gates(native: NativeKernels, kind: str, width: int, norm: int | None) -> None:
    x, gate = numbers(11, width + 2), numbers(11, width + 9)
    weight = None if norm is None else numbers(norm)

    def compute(x: Any, gate: Any) -> Any:
        return gated(x, gate, weight, kind=kind, width=width, first=4, epsilon=1e-6)

    normed = x[:, :width].astype(np.float64)
    if norm is not None and weight is not None:
        heads = normed.reshape(11, -1, norm)
        normed = (heads / np.sqrt((heads**2).mean(-1, keepdims=True) + 1e-6) * weight).reshape(11, -1)
    part = gate[:, 4 : 4 + width].astype(np.float64)
    factor = {"identity": part, "sigmoid": 1 / (1 + np.exp(-part)), "silu": part / (1 + np.exp(-part))}[kind]
    for kernels in (native, ReferenceKernels()):
        assert np.abs(computed(kernels, compute, x, gate)[0] - normed * factor).max() < 1e-5
