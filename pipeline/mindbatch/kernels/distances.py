"""T5's relative positions: a learned bias on scores by the distance of key and query, in buckets.

Source: Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer"
(2020), section 2.1: buckets of one distance each, then of ranges that grow with its logarithm.
"""

from __future__ import annotations

import math

import numpy as np

from mindbatch.kernels.arrays import FloatArray
from mindbatch.kernels.step import IntArray


def distance_buckets(buckets: int, farthest: int, *, causal: bool) -> IntArray:
    """The bucket of key - query for each distance from -farthest to farthest, int32 [2 * farthest + 1].

    causal: all buckets are of keys before the query; else half of them are of those behind it.
    """
    distances = np.arange(-farthest, farthest + 1)
    behind = np.zeros_like(distances) if causal else np.where(distances > 0, buckets // 2, 0)
    each = buckets if causal else buckets // 2
    away = np.maximum(-distances, 0) if causal else np.abs(distances)
    exact = each // 2
    # In float32 and in this order, so that a distance on the edge of a bucket is where the model had it.
    ratio = np.log(np.maximum(away, 1).astype(np.float32) / np.float32(exact))
    steps = ratio / np.float32(math.log(farthest / exact)) * np.float32(each - exact)
    far = np.minimum(exact + steps.astype(np.int64), each - 1)
    return (behind + np.where(away < exact, away, far)).astype(np.int32)


def distance_bias(table: FloatArray, farthest: int, *, causal: bool) -> FloatArray:
    """float32 [heads, 2 * farthest + 1] of a learned table [buckets, heads]."""
    rows = table[distance_buckets(len(table), farthest, causal=causal)]
    return np.ascontiguousarray(rows.T, np.float32)
