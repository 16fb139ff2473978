"""Layers that keep states of sequences: short convolutions and the gated delta rule; products with gates.

A sequence's tokens of a step follow one another. Its state is in the slot that `states` has for its first
token, and is zeros where that has position 0. Behind the tokens that are kept come drafted ones, of slot -1,
after which the state is not written. So no result depends on how a sequence is divided into steps.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from mindbatch.kernels.arrays import Array, FloatArray
from mindbatch.kernels.operations.dense import activated, group_norm
from mindbatch.kernels.recording import operation
from mindbatch.kernels.shapes import STATE_PANEL, Activation, ConvolutionShape, DeltaShape
from mindbatch.kernels.step import IntArray


class _Span(NamedTuple):
    """The tokens of a sequence in a step, how many of them are kept, and its state and the slot of that."""

    tokens: slice
    kept: int
    slot: int
    state: FloatArray


def _spans(state: Array, rows: IntArray, positions: IntArray, states: IntArray) -> Iterator[_Span]:
    edges = [0, *(np.flatnonzero(np.diff(rows)) + 1), len(rows)]
    for first, stop in zip(edges[:-1], edges[1:], strict=True):
        slot = int(states[first])
        before = state[slot] if positions[first] else np.zeros_like(state[slot])
        yield _Span(slice(first, stop), int((states[first:stop] >= 0).sum()), slot, before.copy())


@operation(lambda x, *others, shape: shape.channels)
def causal_convolution(
    x: FloatArray,
    weight: Array,
    bias: Array | None,
    state: Array,
    rows: IntArray,
    positions: IntArray,
    states: IntArray,
    *,
    shape: ConvolutionShape,
) -> FloatArray:
    """Each channel's latest inputs times weights of its own: x [T, >= channels] -> [T, channels].

    weight [kernel, channels], oldest input first. state [slots, kernel - 1, channels].
    """
    y = np.empty((len(x), shape.channels), np.float32)
    for tokens, kept, slot, before in _spans(state, rows, positions, states):
        inputs = np.concatenate((before, x[tokens, : shape.channels]))
        count = len(inputs) - len(before)
        total = np.zeros((count, shape.channels), np.float32)
        for tap in range(shape.kernel):
            total += inputs[tap : tap + count] * weight[tap]
        y[tokens] = total if bias is None else total + bias
        state[slot] = inputs[kept : kept + len(before)]
    return activated(y, "silu") if shape.is_activated else y


@operation(lambda *inputs, shape: shape.value_heads * shape.value_dim)
def gated_delta(
    qkv: FloatArray,
    gates: FloatArray,
    decay: Array,
    bias: Array,
    state: Array,
    rows: IntArray,
    positions: IntArray,
    states: IntArray,
    *,
    shape: DeltaShape,
) -> FloatArray:
    """The gated delta rule, token after token: -> [T, value_heads * value_dim].

    qkv [T, (2 * key_heads * key_dim + value_heads * value_dim)]. gates [T, 2 * value_heads]: what beta is the
    sigmoid of, then steps. decay, bias [value_heads]: a state shrinks by exp(decay * softplus(step + bias)).
    state [slots, value_heads, panels * key_dim, STATE_PANEL]: of each head a matrix [key_dim, value_dim], in
    panels of so many columns. Source: Yang et al., "Gated Delta Networks" (2024).
    """
    keys = shape.key_heads * shape.key_dim
    query, key = (_unit_heads(part, shape) for part in (qkv[:, :keys], qkv[:, keys : 2 * keys]))
    query = query * np.float32(shape.key_dim**-0.5)
    value = qkv[:, 2 * keys :].reshape(len(qkv), shape.value_heads, shape.value_dim)
    beta, step = np.split(gates, 2, -1)
    beta = (1 / (1 + np.exp(-beta.astype(np.float64)))).astype(np.float32)
    softplus = np.logaddexp(0, step.astype(np.float64) + bias)
    shrink = np.exp(np.asarray(decay, np.float64) * softplus).astype(np.float32)
    y = np.empty_like(value)
    for tokens, kept, slot, before in _spans(state, rows, positions, states):
        matrices = _matrices(before, shape)
        for index, token in enumerate(range(tokens.start, tokens.stop)):
            matrices = matrices * shrink[token][:, None, None]
            known = np.einsum("hk,hkv->hv", key[token], matrices)
            change = (value[token] - known) * beta[token][:, None]
            matrices = matrices + key[token][:, :, None] * change[:, None]
            y[token] = np.einsum("hk,hkv->hv", query[token], matrices)
            if index + 1 == kept:
                state[slot] = _panels(matrices, shape)
    return y.reshape(len(qkv), -1)


def _unit_heads(x: FloatArray, shape: DeltaShape) -> FloatArray:
    """Keys or queries [T, key_heads * key_dim] of length 1, of each value head: [T, value_heads, key_dim]."""
    heads = x.reshape(len(x), shape.key_heads, shape.key_dim)
    heads = heads / np.sqrt((heads * heads).sum(-1, keepdims=True) + np.float32(1e-6))
    return heads.repeat(shape.value_heads // shape.key_heads, 1)


def _matrices(state: FloatArray, shape: DeltaShape) -> FloatArray:
    panels = state.reshape(shape.value_heads, -1, shape.key_dim, STATE_PANEL).swapaxes(1, 2)
    return panels.reshape(shape.value_heads, shape.key_dim, -1)[..., : shape.value_dim]


def _panels(matrices: FloatArray, shape: DeltaShape) -> FloatArray:
    padded = np.pad(matrices, ((0, 0), (0, 0), (0, -shape.value_dim % STATE_PANEL)))
    panels = padded.reshape(shape.value_heads, shape.key_dim, -1, STATE_PANEL).swapaxes(1, 2)
    return panels.reshape(shape.value_heads, -1, STATE_PANEL)


@operation(lambda *inputs, kind, width, first, epsilon: width)
def gated(
    x: FloatArray,
    gate: FloatArray,
    weight: Array | None,
    *,
    kind: Activation,
    width: int,
    first: int,
    epsilon: float,
) -> FloatArray:
    """x times act(gate): the first `width` numbers of x, and as many of gate from `first` on.

    weight: None, or of an RMS norm of x before, of as many numbers at a time as it has.
    """
    x = x[:, :width]
    if weight is not None:
        x = group_norm(x, weight, epsilon=epsilon)
    return x * activated(gate[:, first : first + width], kind)
