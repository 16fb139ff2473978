"""What the fused operators compute, in NumPy and float32, as their documentation says."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mindbatch.ascend_check.models import FloatArray
from mindbatch.kernels.step import IntArray, Span


def attention(query: FloatArray, keys: FloatArray, values: FloatArray, scale: float) -> FloatArray:
    """softmax(scale * q k) v of one query [heads, dim] over keys and values [length, kv_heads, dim]."""
    group = len(query) // keys.shape[1]
    scores = np.einsum("hd,lhd->hl", query, np.repeat(keys, group, 1)) * scale
    weights = np.exp(scores - scores.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    return np.asarray(np.einsum("hl,lhd->hd", weights, np.repeat(values, group, 1)), np.float32)


def causal_attention(
    query: FloatArray,
    keys: Sequence[FloatArray],
    values: Sequence[FloatArray],
    spans: Sequence[Span],
    scale: float,
) -> FloatArray:
    """Queries [T, heads, dim] of sequences, one after another, each over what is before it in its sequence.

    keys, values: [positions, kv_heads, dim] of each sequence from its first position on.
    """
    found, at = np.empty_like(query), 0
    for known, seen, (start, stop) in zip(keys, values, spans, strict=True):
        for position in range(start, stop):
            found[at] = attention(query[at], known[: position + 1], seen[: position + 1], scale)
            at += 1
    return found


def rms_norm(x: FloatArray, weight: FloatArray, epsilon: float) -> FloatArray:
    return np.asarray(x / np.sqrt(np.mean(x * x, -1, keepdims=True) + epsilon) * weight, np.float32)


def layer_norm(x: FloatArray, weight: FloatArray, bias: FloatArray, epsilon: float) -> FloatArray:
    centred = x - x.mean(-1, keepdims=True)
    inverse = 1 / np.sqrt(np.mean(centred * centred, -1, keepdims=True) + epsilon)
    return np.asarray(centred * inverse * weight + bias, np.float32)


def rotated(heads: FloatArray, cos: FloatArray, sin: FloatArray) -> FloatArray:
    """Heads [T, n, dim], angles [T, dim / 2]: pairs are numbers of the two halves."""
    first, second = np.split(heads, 2, -1)
    cos, sin = cos[:, None], sin[:, None]
    return np.concatenate((first * cos - second * sin, second * cos + first * sin), -1)


def activated(kind: str, x: FloatArray) -> FloatArray:
    if kind == "gelu_tanh":
        return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))), np.float32)
    if kind == "gelu":
        return np.asarray(0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))), np.float32)
    return x / (1 + np.exp(-x)) if kind == "silu" else np.maximum(x, 0)


def gated(kind: str, x: FloatArray) -> FloatArray:
    """act(gate) * up of [gate, up]."""
    gate, up = np.split(x, 2, -1)
    return activated(kind, gate) * up


def slots_of(table: Sequence[int], stop: int, block_size: int) -> IntArray:
    """Where the positions up to `stop` of a sequence are in the cache."""
    place = np.arange(stop)
    return np.asarray(np.asarray(table)[place // block_size] * block_size + place % block_size, np.int32)


def experts(
    x: FloatArray, router: FloatArray, matrices: tuple[FloatArray, FloatArray], chosen: int
) -> FloatArray:
    """Each row's best experts, gated with SiLU and weighted with their share of the softmax.

    matrices: [experts, 2 * inner, width] and [experts, width, inner].
    """
    (up, down), logits = matrices, x @ router.T
    y = np.zeros_like(x)
    for row, best in enumerate(np.argsort(-logits, 1)[:, :chosen]):
        weights = np.exp(logits[row, best] - logits[row, best].max())
        for expert, weight in zip(best, weights / weights.sum(), strict=True):
            y[row] += weight * (down[expert] @ gated("silu", (up[expert] @ x[row])[None])[0])
    return y
