"""Products and embeddings of tokens that have adapters: each gathers what its own has."""

from __future__ import annotations

from mindspore import Tensor, nn, ops


class GatheredLinear(nn.Cell):
    """Cell (x [T, inputs], weight, bias, slots [T], *stored) -> [T, outputs]."""

    def __init__(self, linear: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.linear = linear
        self.product = ops.BatchMatMul()
        self.whole = ops.MatMul(transpose_b=True)

    def construct(self, x: Tensor, weight: Tensor, bias: Tensor, slots: Tensor, *stored: Tensor) -> Tensor:
        y = self.linear(x, weight, bias)
        if len(stored) > 4:
            for slot in range(1, stored[4].shape[0]):
                chosen = ops.logical_and((slots == slot).expand_dims(1), stored[5][slot] > 0)
                y = ops.where(chosen, self.whole(x, stored[4][slot]), y)
        a, b, scale, offset = stored[:4]
        y = y * ops.gather(scale, slots, 0) + ops.gather(offset, slots, 0)
        shrunk = self.product(ops.gather(a, slots, 0), x.expand_dims(2))
        return y + self.product(ops.gather(b, slots, 0), shrunk).reshape(y.shape)


class GatheredEmbedding(nn.Cell):
    """Cell (ids [T], weight, slots [T], *stored) -> [T, width]; nothing for ids that are not held."""

    def __init__(self, lookup: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.lookup = lookup
        self.product = ops.BatchMatMul()

    def construct(self, ids: Tensor, weight: Tensor, slots: Tensor, *stored: Tensor) -> Tensor:
        a, b, scale, offset = stored[:4]
        tokens = a.shape[1]
        inside = ops.logical_and(ids >= 0, ids < tokens).expand_dims(1)
        where = slots * tokens + ops.clamp(ids, 0, tokens - 1)
        y = self.lookup(ids, weight)
        if len(stored) > 4:
            rows = ops.gather(stored[4].reshape(-1, y.shape[1]), where, 0)
            chosen = ops.logical_and(inside, ops.gather(stored[5], slots, 0) > 0)
            y = ops.where(chosen, rows, y)
        y = y * ops.gather(scale, slots, 0) + ops.gather(offset, slots, 0)
        inner = ops.gather(a.reshape(-1, a.shape[2]), where, 0) * ops.cast(inside, y.dtype)
        return y + self.product(ops.gather(b, slots, 0), inner.expand_dims(2)).reshape(y.shape)
