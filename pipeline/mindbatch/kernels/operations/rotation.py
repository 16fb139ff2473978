"""Rotary positions, and the norms of query and key before them.

qkv [T, (heads + 2 * kv_heads) * head_dim]: the heads of query, key and value, one after another.
Source: Su et al., "RoFormer" (2021).
"""

import math
from collections.abc import Sequence

import numpy as np

from mindbatch.kernels.arrays import Array, FloatArray
from mindbatch.kernels.operations.dense import group_norm
from mindbatch.kernels.recording import operation
from mindbatch.kernels.shapes import AttentionShape
from mindbatch.kernels.step import IntArray


def _angles(positions: Sequence[int], inverse_frequencies: Sequence[float], scale: float) -> tuple[int, int]:
    width = math.prod(positions[1:]) * len(inverse_frequencies)
    return width, width


@operation(_angles)
def rotary_angles(
    positions: IntArray, *, inverse_frequencies: tuple[float, ...], scale: float
) -> tuple[FloatArray, FloatArray]:
    """positions [T] or [T, P] -> cos, sin [T, rotary_dim / 2], times the scale.

    Of several positions, one after another, each has all of the frequencies.
    """
    frequencies = np.array(inverse_frequencies, np.float32)
    angles = (positions.astype(np.float32)[..., None] * frequencies).reshape(len(positions), -1)
    return np.cos(angles) * np.float32(scale), np.sin(angles) * np.float32(scale)


@operation()
def rotary(
    qkv: FloatArray,
    cos: FloatArray,
    sin: FloatArray,
    query_norm: Array | None,
    key_norm: Array | None,
    *,
    shape: AttentionShape,
    epsilon: float,
    is_interleaved: bool,
    in_halves: bool,
) -> FloatArray:
    """cos, sin [T, rotary_dim / 2]; norms or None -> qkv with query and key normed, then rotated.

    Norms are as long as a head, and of each head.
    is_interleaved: the numbers of a pair are neighbours; else they are half of rotary_dim apart.
    in_halves: each half of a head is rotated as if it were one, by half of the angles.
    """
    parts = [*np.split(qkv, np.cumsum(shape.widths)[:2], -1)]
    for number, weight in enumerate((query_norm, key_norm)):
        x = parts[number]
        if weight is not None:
            x = group_norm(x, weight, epsilon=epsilon)
        x = x.reshape(len(qkv), parts[number].shape[1] // shape.head_dim, shape.head_dim)
        if in_halves:
            halves = zip(*(np.split(half_of, 2, -1) for half_of in (x, cos, sin)), strict=True)
            rotated = np.concatenate([_rotated(*half, is_interleaved=False) for half in halves], -1)
        else:
            rotated = _rotated(x, cos, sin, is_interleaved=is_interleaved)
        parts[number] = rotated.reshape(parts[number].shape)
    return np.concatenate(parts, -1)


def _rotated(x: FloatArray, cos: FloatArray, sin: FloatArray, *, is_interleaved: bool) -> FloatArray:
    """Heads [T, heads, head_dim], the first 2 * cos.shape[1] numbers of each rotated."""
    half = cos.shape[1]
    cos, sin = cos[:, None], sin[:, None]
    pairs = (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
    if not is_interleaved:
        pairs = (slice(0, half), slice(half, 2 * half))
    first, second = (x[..., numbers] for numbers in pairs)
    rotated = x.copy()
    rotated[..., pairs[0]] = first * cos - second * sin
    rotated[..., pairs[1]] = second * cos + first * sin
    return rotated


@operation()
def tempered(
    qkv: FloatArray, positions: IntArray, *, shape: AttentionShape, floor: float, factor: float
) -> FloatArray:
    """qkv with the query times 1 + factor * log(1 + floor((position + 1) / floor)).

    Source: Nakanishi, "Scalable-Softmax Is Superior for Attention" (2025), in steps.
    """
    steps = np.floor((positions.astype(np.float32) + np.float32(1)) / np.float32(floor))
    query, rest = np.split(qkv, [shape.heads * shape.head_dim], -1)
    scale = np.log1p(steps) * np.float32(factor) + np.float32(1)
    return np.concatenate((query * scale[:, None], rest), -1)


@operation(lambda qkv, **settings: 2)
def square_sums(qkv: FloatArray, *, shape: AttentionShape, segments: tuple[int, int]) -> FloatArray:
    """[T, 2]: of each token the sums of the squares of its query and its key.

    segments: stretches of the heads of both that are summed apart, and then in a balanced tree.
    """
    query, key, _ = np.split(qkv, np.cumsum(shape.widths)[:2], -1)
    return np.stack(((query * query).sum(-1), (key * key).sum(-1)), 1)


@operation()
def norm_by_sums(
    qkv: FloatArray,
    sums: FloatArray,
    query_norm: Array,
    key_norm: Array,
    *,
    shape: AttentionShape,
    epsilon: float,
    totals: tuple[int, int],
) -> FloatArray:
    """sums [T, 2] -> qkv with an RMS norm of query and key, whose squares are those of all ranks' heads.

    totals: numbers in each of the sums.
    """
    query, key, value = np.split(qkv, np.cumsum(shape.widths)[:2], -1)
    # The mean is over the heads of all ranks, so that a sharded norm equals the whole one.
    by = 1 / np.sqrt(sums / np.array(totals, np.float32) + np.float32(epsilon))
    return np.concatenate((query * by[:, :1] * query_norm, key * by[:, 1:] * key_norm, value), 1)
