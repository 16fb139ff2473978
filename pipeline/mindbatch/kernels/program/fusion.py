"""Passes over a recording: calls made one, and a head that says what it knows of its logits."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from mindbatch.kernels.native_weights import PANEL
from mindbatch.kernels.recording import ROWS, RecordedCall, Recording, Symbol

PRODUCT = "mb_linear"
ROW_BY_ROW = ("mb_norm", "mb_add_norm", "mb_activation")
"""Functions whose first output may be computed so: see csrc/fused_ops.cpp."""


def with_added_norms(recording: Recording) -> Recording:
    """The recording, with one call for each sum and the first norm of it."""
    sums = {call.outputs[0] for call in recording.calls if call.operation == "sum"}
    norms: dict[Symbol, RecordedCall] = {}
    for call in recording.calls:
        if call.operation == "norm" and call.inputs[0] in sums:
            norms.setdefault(call.inputs[0], call)
    joined = {id(call) for call in norms.values()}
    calls = []
    for call in recording.calls:
        norm = norms.get(call.outputs[0]) if call.operation == "sum" else None
        if norm is not None:
            outputs = (norm.outputs[0], call.outputs[0])
            calls.append(
                replace(norm, operation="add_norm", inputs=(*call.inputs, *norm.inputs[1:]), outputs=outputs)
            )
        elif id(call) not in joined:
            calls.append(call)
    return replace(recording, calls=calls)


def fused(recording: Recording) -> Recording:
    """The recording, with one call for each norm or activation and the product behind it.

    So its rows are not written to memory and read again, and threads wait for one another once less. A row's
    bits are the same. What others read too, or is asked of the recording, is computed by a call of its own.
    """
    return replace(recording, calls=[*_fused_calls(recording)])


def _fused_calls(recording: Recording) -> Iterator[RecordedCall]:
    reads = Counter(
        symbol for call in recording.calls for symbol in call.inputs if isinstance(symbol, Symbol)
    )
    # What a recording gives is read by its caller, and must be written.
    reads.update(recording.outputs)
    before: RecordedCall | None = None
    for call in recording.calls:
        if before is not None and _is_read_by_one(before, call, reads):
            before = _joined(before, call)
            continue
        if before is not None:
            yield before
        before = call
    if before is not None:
        yield before


def _is_read_by_one(first: RecordedCall, product: RecordedCall, reads: Counter[Symbol]) -> bool:
    if first.operation not in ROW_BY_ROW or not product.operation.startswith(PRODUCT):
        return False
    return product.inputs[0] is first.outputs[0] and reads[first.outputs[0]] == 1


def _joined(first: RecordedCall, product: RecordedCall) -> RecordedCall:
    """The outputs are those of the first that remain, then the product's."""
    name = first.operation + product.operation.removeprefix("mb")
    return RecordedCall(name, (*first.inputs, *product.inputs[1:]), (*first.outputs[1:], *product.outputs))


HEAD = "mb_head"


def summarised(recording: Recording) -> Recording:
    """The recording of a head, with a summary [rows, 2, panels] of its logits as one more output.

    As it is where the logits are no product's: what is computed of one (caps, factors, other ranks' logits),
    changes what a summary says.
    """
    *before, last = recording.calls
    [*_, logits] = recording.outputs
    if not last.operation.startswith(PRODUCT) or last.outputs != (logits,):
        return recording
    summary = Symbol(recording, (ROWS, 2, -(-logits.shape[1] // PANEL)), np.dtype(np.float32))
    head = replace(last, operation=last.operation.replace(PRODUCT, HEAD), outputs=(logits, summary))
    return replace(recording, calls=[*before, head], outputs=[*recording.outputs, summary])
