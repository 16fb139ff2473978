"""What latent attention computes beside attention itself."""

from __future__ import annotations

from mindspore import Tensor, mint, nn, ops

from mindbatch.kernels.shapes import HeadProductsShape


class Columns(nn.Cell):
    """x [T, width] -> its columns [T, count] from the first on."""

    def __init__(self, first: int, count: int) -> None:
        super().__init__(auto_prefix=False)
        self.first, self.count = first, count

    def construct(self, x: Tensor) -> Tensor:
        return _part(x, self.first, self.count)


class HeadProducts(nn.Cell):
    """See `operations.latent.head_products`; matrices are [heads, inputs, outputs]."""

    def __init__(self, shape: HeadProductsShape) -> None:
        super().__init__(auto_prefix=False)
        self.heads, self.stride, self.first = shape.heads, shape.stride, shape.first
        self.inputs = shape.inputs
        self.product = ops.BatchMatMul()

    def construct(self, x: Tensor, matrices: Tensor) -> Tensor:
        tokens = x.shape[0]
        x = _part(x, 0, self.heads * self.stride).reshape(tokens, self.heads, self.stride)
        x = _part(x, self.first, self.inputs)
        return mint.transpose(self.product(mint.transpose(x, 0, 1), matrices), 0, 1).reshape(tokens, -1)


class LatentHeads(nn.Cell):
    """See `operations.latent.latent_heads`."""

    def __init__(self, heads: int, rope: int) -> None:
        super().__init__(auto_prefix=False)
        self.heads, self.rope = heads, rope

    def construct(self, queries: Tensor, absorbed: Tensor, keys: Tensor, latents: Tensor) -> Tensor:
        tokens, rotated = queries.shape[0], self.heads * self.rope
        queries = _part(queries, queries.shape[1] - rotated, rotated).reshape(tokens, self.heads, self.rope)
        queries = ops.cat((queries, absorbed.reshape(tokens, self.heads, -1)), 2).reshape(tokens, -1)
        key = ops.cat((_part(keys, keys.shape[1] - self.rope, self.rope), latents), 1)
        return ops.cat((queries, key, key), 1)


def _part(x: Tensor, first: int, count: int) -> Tensor:
    """Of the last dimension."""
    return mint.narrow(x, -1, first, count)
