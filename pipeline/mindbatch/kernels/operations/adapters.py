"""Products and embeddings of tokens that have adapters.

slots [T]: of each token's adapter. stored, as `kernels.slot_arrays` keeps it: A [slots, rank, inputs], of an
embedding [slots, tokens, rank]; B [slots, outputs, rank]; scale, offset [slots, outputs]; and where any
adapter has them whole weights [slots, outputs, inputs] ([slots, tokens, width]) with a mark [slots, 1].
"""

from __future__ import annotations

import numpy as np

from mindbatch.kernels.adapters import AdaptedShape
from mindbatch.kernels.arrays import Array, FloatArray
from mindbatch.kernels.operations.dense import embedding, linear
from mindbatch.kernels.recording import operation
from mindbatch.kernels.step import IntArray


@operation(lambda x, *others, outputs, shape: outputs)
def adapted_linear(
    x: FloatArray,
    weight: Array,
    bias: Array | None,
    slots: IntArray,
    *stored: Array,
    outputs: int,
    shape: AdaptedShape,
) -> FloatArray:
    """`linear`, and of each token what the adapter in its slot does -> [T, outputs]."""
    y = linear(x, weight, bias, outputs=outputs)
    a, b, scale, offset, *whole = stored
    for slot in np.unique(slots):
        own = slots == slot
        if whole and whole[1][slot, 0]:
            y[own] = x[own] @ whole[0][slot].T
        y[own] = y[own] * scale[slot] + offset[slot] + (x[own] @ a[slot].T) @ b[slot].T
    return y


@operation(lambda ids, *others, shape: shape.widths[0])
def adapted_embedding(
    ids: IntArray, weight: Array, slots: IntArray, *stored: Array, shape: AdaptedShape
) -> FloatArray:
    """`embedding`, and of each token what the adapter in its slot does -> [T, width]."""
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
