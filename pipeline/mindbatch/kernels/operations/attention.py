"""Attention over the paged cache, and what latent attention has besides.

Caches [blocks, block_size, kv_heads, head_dim]. Of a step slots, rows, lengths [T] and tables [S, W]; see
`kernels.step.Batch`.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from mindbatch.kernels.arrays import Array, CacheArray, FloatArray, PackedWeight
from mindbatch.kernels.operations.dense import capped
from mindbatch.kernels.recording import operation
from mindbatch.kernels.shapes import AttentionShape, HeadProductsShape
from mindbatch.kernels.step import IntArray


def _heads(x: Any, *others: Any, shape: AttentionShape, **settings: Any) -> int:
    return shape.heads * shape.head_dim


@operation(_heads)
def attention(
    qkv: FloatArray,
    keys: CacheArray,
    values: CacheArray,
    slots: IntArray,
    rows: IntArray,
    tables: IntArray,
    lengths: IntArray,
    sinks: Array | None = None,
    *,
    shape: AttentionShape,
) -> FloatArray:
    """qkv [T, (heads + 2 * kv_heads) * head_dim] -> [T, heads * head_dim].

    The step's keys and values are written to the cache before any token attends. sinks: [heads], given where
    the shape has some: the logit that takes its share of each softmax (Xiao et al., "Efficient Streaming
    Language Models with Attention Sinks", 2023, with a logit instead of a token).
    """
    heads = qkv.reshape(len(qkv), -1, shape.head_dim)
    queries, own = heads[:, : shape.heads], heads[:, shape.heads :]
    _write(keys, own[:, : shape.kv_heads], slots)
    _write(values, own[:, shape.kv_heads :], slots)
    return cross_attention(queries, keys, values, rows, tables, lengths, sinks, shape=shape)


@operation(_heads)
def distance_attention(
    qkv: FloatArray,
    keys: CacheArray,
    values: CacheArray,
    slots: IntArray,
    rows: IntArray,
    tables: IntArray,
    lengths: IntArray,
    first_positions: IntArray,
    positions: IntArray,
    bias: Array,
    *,
    shape: AttentionShape,
    within_step: bool,
) -> FloatArray:
    """Attention of tokens that see the positions [first, length), with a bias by distance.

    A score gets the bias [heads, 2 * max_distance + 1] of key - own position, counted from -max_distance on.
    within_step: the step has all tokens of its rows, which see each other.
    """
    heads = qkv.reshape(len(qkv), 3, shape.heads, shape.head_dim)
    _write(keys, heads[:, 1], slots)
    _write(values, heads[:, 2], slots)
    y, max_distance = np.zeros_like(heads[:, 0]), bias.shape[1] // 2
    for tokens, table in _sequences(rows, tables, lengths):
        keys_at = np.arange(lengths[tokens].max())
        scores = _products(heads[tokens, 0], _positions(keys, table, len(keys_at)), shape)
        distances = np.clip(keys_at - positions[tokens][:, None], -max_distance, max_distance) + max_distance
        visible = (keys_at < lengths[tokens][:, None]) & (keys_at >= first_positions[tokens][:, None])
        scores = scores + bias[:, distances].swapaxes(0, 1)
        y[tokens] = _weighed(scores, visible, _positions(values, table, len(keys_at)))
    return y.reshape(len(qkv), -1)


@operation(_heads)
def cross_attention(
    queries: FloatArray,
    keys: CacheArray,
    values: CacheArray,
    rows: IntArray,
    tables: IntArray,
    lengths: IntArray,
    sinks: Array | None = None,
    *,
    shape: AttentionShape,
) -> FloatArray:
    """queries [T, heads * head_dim] over what the cache has, within the window -> [T, heads * head_dim]."""
    heads = queries.reshape(len(queries), shape.heads, shape.head_dim)
    y = np.zeros_like(heads)
    for tokens, table in _sequences(rows, tables, lengths):
        seen = lengths[tokens][:, None]
        positions = np.arange(int(seen.max()))
        scores = _products(heads[tokens], _positions(keys, table, len(positions)), shape)
        if shape.softcap:
            scores = capped(scores, cap=shape.softcap)
        if shape.alibi is not None:
            scores = scores + _alibi(shape, positions, seen)
        visible = positions < seen
        if shape.window:
            chunk = (seen - 1) // shape.window * shape.window
            visible &= positions >= (chunk if shape.is_chunked else seen - shape.window)
        y[tokens] = _weighed(scores, visible, _positions(values, table, len(positions)), sinks)
    return y.reshape(len(queries), -1)


@operation(lambda *shapes, shape: ())
def write_cache(
    x: FloatArray,
    keys_values: FloatArray,
    keys: CacheArray,
    values: CacheArray,
    slots: IntArray,
    *,
    shape: AttentionShape,
) -> None:
    """keys_values [T, 2 * kv_heads * head_dim]; what is computed of x behind it finds them written."""
    heads = keys_values.reshape(len(keys_values), 2, shape.kv_heads, shape.head_dim)
    _write(keys, heads[:, 0], slots)
    _write(values, heads[:, 1], slots)


def _write(cache: Array, heads: FloatArray, slots: IntArray) -> None:
    # Padding has slot -1.
    inside = slots >= 0
    block, offset = np.divmod(slots[inside], cache.shape[1])
    cache[block, offset] = heads[inside]


def _sequences(rows: IntArray, tables: IntArray, lengths: IntArray) -> Iterator[tuple[IntArray, IntArray]]:
    """The tokens of each sequence that see something, and its blocks."""
    for row in np.unique(rows[lengths > 0]):
        yield np.flatnonzero((rows == row) & (lengths > 0)), tables[row]


def _positions(cache: Array, table: IntArray, count: int) -> FloatArray:
    """The first so many positions of a sequence [count, kv_heads, head_dim]."""
    positions: FloatArray = cache[table[: -(-count // cache.shape[1])]].reshape(-1, *cache.shape[2:])[:count]
    return positions


def _products(queries: FloatArray, keys: FloatArray, shape: AttentionShape) -> FloatArray:
    """[T, heads, head_dim], [P, kv_heads, head_dim] -> scores [T, heads, P]."""
    tokens, kv_heads = len(queries), keys.shape[1]
    # Query heads that share a key/value head lie next to one another.
    grouped = queries.reshape(tokens, kv_heads, -1, shape.head_dim)
    scores: FloatArray = np.einsum("tkgd,pkd->tkgp", grouped, keys, optimize=True)
    return scores.reshape(tokens, -1, len(keys)) * np.float32(shape.scale)


def _weighed(
    scores: FloatArray, visible: Array, values: FloatArray, sinks: Array | None = None
) -> FloatArray:
    """Softmax of scores [T, heads, P] where visible [T, P], times values: [T, heads, head_dim]."""
    # The largest score is subtracted so that no exponential overflows. A sink has a share of the sum and no
    # value.
    scores = np.where(visible[:, None], scores, np.float32(-np.inf))  # which NumPy 2 would make float64
    apart = np.full((1, 1, 1), -np.inf, np.float32) if sinks is None else sinks.reshape(1, -1, 1)
    top = np.maximum(scores.max(-1, keepdims=True), apart)
    weights = np.exp(scores - top)
    weights /= weights.sum(-1, keepdims=True) + np.exp(apart - top)
    grouped = weights.reshape(len(weights), values.shape[1], -1, len(values))
    weighed: FloatArray = np.einsum("tkgp,pkd->tkgd", grouped, values, optimize=True)
    return weighed.reshape(len(weights), -1, values.shape[2])


def _alibi(shape: AttentionShape, positions: IntArray, seen: IntArray) -> FloatArray:
    """[T or 1, heads, P] of ALiBi, relative to a token's own position unless they are rounded."""
    alibi = shape.alibi
    assert alibi is not None
    slopes, factor = np.array(alibi.slopes, np.float32)[:, None], np.float32(alibi.factor)
    # Rounded after every product, as Falcon was trained: other steps would give other scores.
    if alibi.is_rounded:
        distances = _nearest_bfloat16(positions.astype(np.float32))
        return (_nearest_bfloat16(_nearest_bfloat16(slopes) * distances) * factor)[None]
    # A term that all positions share changes no softmax; relative to the token the numbers stay small.
    distances = (positions - seen + 1).astype(np.float32)[:, None]
    return slopes * distances * factor


def _nearest_bfloat16(x: FloatArray) -> FloatArray:
    bits = x.view(np.uint32)
    # To the nearest, halves to even: half of what is cut off less one, and one more where the last bit kept
    # is 1.
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    nearest: FloatArray = (rounded & np.uint32(0xFFFF0000)).view(np.float32)
    return nearest


@operation(lambda x, matrices, shape: shape.heads * shape.outputs)
def head_products(x: FloatArray, matrices: PackedWeight, *, shape: HeadProductsShape) -> FloatArray:
    """x [T, width], packed stack of [outputs, inputs] for each head -> [T, heads * outputs]."""
    heads = x[:, : shape.heads * shape.stride].reshape(len(x), shape.heads, shape.stride)
    heads = heads[..., shape.first : shape.first + shape.inputs]
    stack = matrices.reshape(shape.heads, shape.outputs, shape.inputs)
    products: FloatArray = np.einsum("thi,hoi->tho", heads, stack, optimize=True)
    return products.reshape(len(x), -1)


def _latent_heads(queries: Any, absorbed: Any, keys: Any, latents: Any, heads: int, rope: int) -> int:
    width: int = (heads + 2) * (rope + latents[1])
    return width


@operation(_latent_heads)
def latent_heads(
    queries: FloatArray, absorbed: FloatArray, keys: FloatArray, latents: FloatArray, *, heads: int, rope: int
) -> FloatArray:
    """absorbed [T, heads * rank], latents [T, rank] -> qkv of one key/value head.

    queries, keys: with heads * rope and with rope numbers at the end of each row, which will be rotated.
    Each query is [rope, rank]: these, and what was absorbed; so is the key, with the latent, and the value is
    the key once more.
    """
    rotated = queries[:, queries.shape[1] - heads * rope :].reshape(len(queries), heads, rope)
    query = np.concatenate((rotated, absorbed.reshape(len(queries), heads, -1)), -1)
    key = np.concatenate((keys[:, keys.shape[1] - rope :], latents), -1)
    return np.concatenate((query.reshape(len(queries), -1), key, key), 1)
