"""Norms and activations that products compute as they read: the bits that each has by itself."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from kernel_runs import numbers

from mindbatch.kernels.arrays import Array
from mindbatch.kernels.memory import BFLOAT16, FLOAT32, INT8, NumberType
from mindbatch.kernels.native import NativeKernels
from mindbatch.kernels.native_library import NativeLibrary
from mindbatch.kernels.native_program import NativeProgram, fused
from mindbatch.kernels.operations import dense
from mindbatch.kernels.operations.dense import linear
from mindbatch.kernels.recording import Recording, Symbol, with_added_norms
from mindbatch.kernels.reference import ReferenceProgram

WIDTH, COLUMNS = 200, 70
ROWS = (1, 2, 5, 17, 70)

Record = Callable[[NativeKernels, Recording], list[Symbol]]


def matrix(kernels: NativeKernels) -> Array:
    packed = kernels.packed_zeros(COLUMNS, WIDTH)
    kernels.pack(packed, 0, numbers(COLUMNS, WIDTH))
    return packed


def product(kernels: NativeKernels, x: Symbol) -> Symbol:
    found: Symbol = linear(x, matrix(kernels), numbers(COLUMNS), outputs=COLUMNS)
    return found


def add_norm(kernels: NativeKernels, recording: Recording) -> list[Symbol]:
    """The normed rows, their sums with a residual, and the product."""
    x, residual = (recording.input((WIDTH,), np.float32) for _ in range(2))
    vectors = numbers(WIDTH), numbers(1, WIDTH)[0]
    normed, total = dense.add_norm(x, residual, *vectors, epsilon=1e-5, centred=True)
    return [normed, total, product(kernels, normed)]


def norm(kernels: NativeKernels, recording: Recording) -> list[Symbol]:
    x = recording.input((WIDTH,), np.float32)
    normed = dense.norm(x, numbers(WIDTH), None, epsilon=1e-6, centred=False)
    return [normed, product(kernels, normed)]


def gate(kernels: NativeKernels, recording: Recording) -> list[Symbol]:
    x = recording.input((2 * WIDTH,), np.float32)
    active = dense.activation(x, kind="silu", gated=True)
    return [active, product(kernels, active)]


def gelu(kernels: NativeKernels, recording: Recording) -> list[Symbol]:
    x = recording.input((WIDTH,), np.float32)
    active = dense.activation(x, kind="gelu_tanh", gated=False)
    return [active, product(kernels, active)]


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize("kind", [FLOAT32, BFLOAT16, INT8], ids=lambda kind: kind.name)
@pytest.mark.parametrize("record", [add_norm, norm, gate, gelu])
def test_a_row_has_the_bits_of_both_apart_and_alone(
    record: Record, kind: NumberType, library: NativeLibrary
) -> None:
    kernels = NativeKernels(library, kind)
    recording = Recording()
    between, *asked = record(kernels, recording)
    recording.outputs.extend(asked)
    recording = kernels.lowered(recording)
    apart = Recording(recording.inputs, recording.calls, [between, *asked])
    assert (len(fused(recording).calls), len(fused(apart).calls)) == (1, 2)
    program, reference = NativeProgram(recording, library), NativeProgram(apart, library)
    for rows in ROWS:
        inputs = [numbers(rows, *each.shape[1:]) + index for index, each in enumerate(recording.inputs)]
        found = program.run(inputs)
        for ours, theirs in zip(found, reference.run(inputs)[1:], strict=True):
            np.testing.assert_array_equal(ours, theirs)
        last = [each[-1:].copy() for each in found]
        for ours, theirs in zip(program.run([each[-1:] for each in inputs]), last, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_what_two_products_read_is_computed_once(library: NativeLibrary) -> None:
    kernels, recording = NativeKernels(library), Recording()
    normed, first = norm(kernels, recording)
    recording.outputs.extend([first, product(kernels, normed)])
    calls = fused(kernels.lowered(recording)).calls
    assert [call.operation for call in calls] == ["mb_norm", "mb_linear", "mb_linear"]


def test_a_sum_and_the_norm_of_it_are_one_call() -> None:
    """The sum is what others read, too; a second norm of it stays by itself."""
    recording = Recording()
    x, y = (recording.input((WIDTH,), np.float32) for _ in range(2))
    weight, how = numbers(WIDTH), {"epsilon": 1e-6, "centred": False}
    total = x + y
    first, second = (dense.norm(total, weight, None, **how) for _ in range(2))
    recording.outputs.extend([first + second, total])
    joined = with_added_norms(recording)
    assert [call.operation for call in joined.calls] == ["add_norm", "norm", "sum"]
    arrays = [numbers(3, WIDTH), numbers(3, WIDTH) + 1]
    for ours, theirs in zip(
        ReferenceProgram(joined).run(arrays), ReferenceProgram(recording).run(arrays), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
