"""Operations of latent attention beside attention itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from mindbatch.kernels.arrays import Array, FloatArray
from mindbatch.kernels.recording import operation
from mindbatch.kernels.shapes import HeadProductsShape


@operation(lambda x, matrices, shape: shape.heads * shape.outputs)
def head_products(x: FloatArray, matrices: Array, *, shape: HeadProductsShape) -> FloatArray:
    """x [T, width], packed stack of [outputs, inputs] for each head -> [T, heads * outputs]."""
    heads = x[:, : shape.heads * shape.stride].reshape(len(x), shape.heads, shape.stride)
    heads = heads[..., shape.first : shape.first + shape.inputs]
    stack = matrices.reshape(shape.heads, shape.outputs, shape.inputs)
    products: FloatArray = np.einsum("thi,hoi->tho", heads, stack, optimize=True)
    return products.reshape(len(x), -1)


def _heads(queries: Any, absorbed: Any, keys: Any, latents: Any, heads: int, rope: int) -> int:
    width: int = (heads + 2) * (rope + latents[1])
    return width


@operation(_heads)
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
