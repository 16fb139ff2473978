"""Products, sums and functions of single rows, and collectives of the ranks of one model.

x, y [T, width] float32. "or None" is of vectors that a model has not.
"""

import math
from typing import Any

import numpy as np

from mindbatch.kernels.adapters import AdaptedShape
from mindbatch.kernels.arrays import Array, FloatArray, PackedWeight
from mindbatch.kernels.recording import operation
from mindbatch.kernels.shapes import Activation
from mindbatch.kernels.step import IntArray
from mindbatch.parallel.topology import TensorSlice


@operation(lambda x, weight, bias, outputs: outputs)
def linear(x: FloatArray, weight: PackedWeight, bias: Array | None, *, outputs: int) -> FloatArray:
    """x W^T + b; packed weight [outputs, inputs], bias [outputs] or None -> [T, outputs]."""
    y: FloatArray = x @ weight.T
    return y if bias is None else y + bias


@operation(lambda ids, weight, width: width)
def embedding(ids: IntArray, weight: PackedWeight, *, width: int) -> FloatArray:
    """ids [T], packed weight [vocabulary, width] -> [T, width]; zeros for ids of other ranks."""
    inside = (ids >= 0) & (ids < len(weight))
    rows: FloatArray = weight[ids * inside] * inside[:, None]
    return rows


@operation(lambda numbers, table: table[1])
def table_rows(numbers: IntArray, table: Array) -> FloatArray:
    """numbers [T], table [rows, width], not packed -> [T, width]."""
    rows: FloatArray = table[numbers]
    return rows


@operation(lambda ids, first: None, dtype=np.int32)
def ids_from(ids: IntArray, *, first: int) -> IntArray:
    """ids [T] -> ids - first: what the embedding takes of a rank with ids from there on."""
    return (ids - first).astype(np.int32)


@operation()
def scaled(x: FloatArray, *, factor: float) -> FloatArray:
    """x * factor."""
    return x * np.float32(factor)


@operation()
def capped(x: FloatArray, *, cap: float) -> FloatArray:
    """cap * tanh(x / cap)."""
    return np.tanh(x / np.float32(cap)) * np.float32(cap)


@operation()
def sum(x: FloatArray, y: FloatArray) -> FloatArray:
    """x + y."""
    return x + y


@operation()
def biased(x: FloatArray, bias: Array) -> FloatArray:
    """x + bias [width]: of sums over ranks, which have none before they are complete."""
    return x + bias


@operation(lambda x, y: x[1] + y[1])
def joined(x: FloatArray, y: FloatArray) -> FloatArray:
    """x [T, a], y [T, b] -> [T, a + b], side by side."""
    return np.concatenate((x, y), 1)


@operation(lambda x, first, count: count)
def columns(x: FloatArray, *, first: int, count: int) -> FloatArray:
    """The numbers of each row from `first` on -> [T, count]."""
    return x[:, first : first + count]


@operation()
def norm(x: FloatArray, weight: Array, bias: Array | None, *, epsilon: float, centred: bool) -> FloatArray:
    """Layer norm when centred, else RMS norm; weight [width], bias [width] or None."""
    if centred:
        x = x - x.mean(-1, keepdims=True)
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(epsilon)) * weight
    return y if bias is None else y + bias


@operation()
def group_norm(x: FloatArray, weight: Array, *, epsilon: float) -> FloatArray:
    """RMS norm of as many numbers of a row at a time as the weight has."""
    groups = x.reshape(len(x), x.shape[1] // len(weight), len(weight))
    return norm(groups, weight, None, epsilon=epsilon, centred=False).reshape(x.shape)


@operation(lambda x, *others, **settings: (x[1], x[1]))
def add_norm(
    x: FloatArray, residual: FloatArray, weight: Array, bias: Array | None, *, epsilon: float, centred: bool
) -> tuple[FloatArray, FloatArray]:
    """(norm(x + residual), x + residual)."""
    total = x + residual
    return norm(total, weight, bias, epsilon=epsilon, centred=centred), total


@operation(lambda x, kind, gated: x[1] // 2 if gated else x[1])
def activation(x: FloatArray, *, kind: Activation, gated: bool) -> FloatArray:
    """act(x), or act(gate) * up for x [T, 2 * width] with the gate first."""
    if not gated:
        return activated(x, kind)
    gate, up = np.split(x, 2, -1)
    return activated(gate, kind) * up


def activated(x: FloatArray, kind: str) -> FloatArray:
    """act(x), by the name of the function."""
    if kind == "identity":
        return x
    if kind == "sigmoid":
        return _sigmoid(x)
    if kind == "gelu_tanh":
        return x * _sigmoid(1.5957691216 * (x + 0.044715 * x * x * x))  # 0.5 (1 + tanh(y)) is sigmoid(2 y)
    if kind == "gelu":
        return (0.5 * x * (1.0 + _erf(x * math.sqrt(0.5)))).astype(np.float32)
    if kind in ("silu", "quick_gelu"):
        return x * _sigmoid(x if kind == "silu" else 1.702 * x)
    return np.maximum(x, 0)


def _sigmoid(x: FloatArray) -> FloatArray:
    # By tanh: exp(-x) would overflow where x is far below 0.
    return 0.5 * (1.0 + np.tanh(0.5 * x))


@operation()
def xielu(x: FloatArray, positive: Array, negative: Array, *, beta: float, epsilon: float) -> FloatArray:
    """Squares above 0, exponentials below, each with a learned slope (arXiv:2411.13010).

    positive, negative [1]: the slopes before the softplus that keeps them above 0.
    """
    above, below = np.logaddexp(0, positive), beta + np.logaddexp(0, negative)
    curve = np.where(x > 0, above * x * x, below * (np.expm1(np.minimum(x, np.float32(epsilon))) - x))
    return (curve + beta * x).astype(np.float32)


_erf = np.vectorize(math.erf, otypes=[np.float64])


@operation(lambda x, *others, outputs, shape: (outputs, shape.rank))
def adapted_products(
    x: FloatArray,
    weight: PackedWeight,
    slots: IntArray,
    *stored: Array,
    outputs: int,
    shape: AdaptedShape,
) -> tuple[FloatArray, FloatArray]:
    """x W^T [T, outputs], W being whole weights where the adapter has some, and x A^T [T, rank].

    Ranks that divide the inputs add both up before `adapted_sum` is taken.

    slots [T]: of each token's adapter. stored, as `kernels.adapters.SlotArrays` keeps it: A [slots, rank,
    inputs], of an embedding [slots, tokens, rank]; B [slots, outputs, rank]; scale, offset [slots, outputs];
    and where any adapter has them whole weights [slots, outputs, inputs] ([slots, tokens, width]) with a mark
    [slots, 1].
    """
    y = linear(x, weight, None, outputs=outputs)
    inner = np.zeros((len(x), shape.rank), np.float32)
    a, _, _, _, *whole = stored
    for slot in np.unique(slots):
        own = slots == slot
        if whole and whole[1][slot, 0]:
            y[own] = x[own] @ whole[0][slot].T
        inner[own] = x[own] @ a[slot].T
    return y, inner


@operation()
def adapted_sum(
    y: FloatArray,
    inner: FloatArray,
    bias: Array | None,
    slots: IntArray,
    *stored: Array,
    shape: AdaptedShape,
) -> FloatArray:
    """(y + bias) * scale + offset + inner B^T, for what `adapted_products` gives -> [T, outputs].

    Whole weights have no bias.
    """
    _, b, scale, offset, *whole = stored
    if bias is not None:
        y = y + (bias if not whole else bias * (whole[1][slots] == 0))
    y = y * scale[slots] + offset[slots]
    for slot in np.unique(slots):
        own = slots == slot
        y[own] += inner[own] @ b[slot].T
    return y


@operation(lambda ids, *others, shape: shape.widths[0])
def adapted_embedding(
    ids: IntArray, weight: PackedWeight, slots: IntArray, *stored: Array, shape: AdaptedShape
) -> FloatArray:
    """`embedding` and what adapters do -> [T, width]; slots, stored: see `adapted_products`."""
    y = embedding(ids, weight, width=shape.widths[0])
    a, b, scale, offset, *whole = stored
    inside = (ids >= 0) & (ids < a.shape[1])
    known = np.where(inside, ids, 0)
    if whole:
        marked = inside & (whole[1][slots, 0] > 0)
        y[marked] = whole[0][slots[marked], known[marked]]
    inner = a[slots, known] * inside[:, None]
    added: FloatArray = np.einsum("tr,tor->to", inner, b[slots])
    rows: FloatArray = y * scale[slots] + offset[slots] + added
    return rows


@operation()
def all_reduce(x: FloatArray, *, shard: TensorSlice) -> FloatArray:
    """The sum over the ranks of the slice, in a balanced tree; [T, width] on each."""
    return _alone(x)


@operation(lambda x, shard, total: total)
def all_gather(x: FloatArray, *, shard: TensorSlice, total: int) -> FloatArray:
    """x [T, width] on each rank of the slice -> [T, total], side by side; the rest is padding."""
    return _alone(x)


@operation()
def send_hidden(x: FloatArray, *, stage: int, tensor_rank: int) -> FloatArray:
    """Sends x [T, width] from a rank of a stage to its peer in the next one, and gives x."""
    return _alone(x)


@operation(lambda ids, stage, tensor_rank, width: width)
def receive_hidden(ids: IntArray, *, stage: int, tensor_rank: int, width: int) -> FloatArray:
    """Receives the hidden states [T, width] of ids [T] from the peer in the stage before."""
    return _alone(ids)


def _alone(x: Any) -> Any:
    raise NotImplementedError("NumPy computes one rank of one")
