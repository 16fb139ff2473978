"""Norms and activations computed by the products that read them, row by row, as they pack their input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from mindbatch.kernels.program.recording import Call, Recording, Symbol

PRODUCT = "mb_linear"
ROW_BY_ROW = ("mb_norm", "mb_add_norm", "mb_activation")
"""Functions whose first output may be computed so: see csrc/fused_ops.cpp."""


def fused(recording: Recording) -> Recording:
    """The recording, with one call for each norm or activation and the product behind it.

    So its rows are not written to memory and read again, and threads wait for one another once less. A row's
    bits are the same. What others read too, or is asked of the recording, is computed by a call of its own.
    """
    return replace(recording, calls=[*_fused_calls(recording)])


def _fused_calls(recording: Recording) -> Iterator[Call]:
    reads = Counter(each for call in recording.calls for each in call.inputs if isinstance(each, Symbol))
    reads.update(recording.outputs)
    before: Call | None = None
    for call in recording.calls:
        if before is not None and _is_read_by_one(before, call, reads):
            before = _joined(before, call)
            continue
        if before is not None:
            yield before
        before = call
    if before is not None:
        yield before


def _is_read_by_one(first: Call, product: Call, reads: Counter[Symbol]) -> bool:
    if first.function not in ROW_BY_ROW or not product.function.startswith(PRODUCT):
        return False
    return product.inputs[0] is first.outputs[0] and reads[first.outputs[0]] == 1


def _joined(first: Call, product: Call) -> Call:
    """The outputs are those of the first that remain, then the product's."""
    name = first.function + product.function.removeprefix("mb")
    return Call(name, (*first.inputs, *product.inputs[1:]), (*first.outputs[1:], *product.outputs))
