"""Norms and activations that products compute as they read: the bits that each has by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from mindbatch.kernels.arrays import Array, FloatArray
from mindbatch.kernels.memory import BFLOAT16, FLOAT32, INT8, NumberType
from mindbatch.kernels.native import NativeKernels
from mindbatch.kernels.native_library import find_library
from mindbatch.kernels.program.fusion import fused
from mindbatch.kernels.program.program import Program
from mindbatch.kernels.program.recording import Recording, Symbol

LIBRARY = find_library()
WIDTH, COLUMNS = 200, 70
ROWS = (1, 2, 5, 17, 70)

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="the C++ kernels were not built")

Record = Callable[[NativeKernels, Recording], list[Symbol]]


@pytest.fixture(params=[] if LIBRARY is None else LIBRARY.variants)
def variant(request: pytest.FixtureRequest) -> Iterator[str]:
    assert LIBRARY is not None
    before = LIBRARY.variant
    LIBRARY.set_variant(request.param)
    yield str(request.param)
    LIBRARY.set_variant(before)


def numbers(*shape: int) -> FloatArray:
    return np.random.default_rng(list(shape)).standard_normal(shape).astype(np.float32)


def matrix(kernels: NativeKernels) -> Array:
    packed = kernels.packed_zeros(COLUMNS, WIDTH)
    kernels.pack(packed, 0, numbers(COLUMNS, WIDTH))
    return packed


def add_norm(kernels: NativeKernels, recording: Recording) -> list[Symbol]:
    """The normed rows, their sums with a residual, and the product."""
    x, residual = (recording.input((WIDTH,), np.float32) for _ in range(2))
    norm = kernels.add_norm(1e-5, centred=True)
    normed, total = norm(x, residual, numbers(WIDTH), numbers(1, WIDTH)[0])
    return [normed, total, kernels.linear(COLUMNS)(normed, matrix(kernels), numbers(COLUMNS))]


def norm(kernels: NativeKernels, recording: Recording) -> list[Symbol]:
    x, none = recording.input((WIDTH,), np.float32), np.zeros(1, np.float32)
    normed = kernels.norm(1e-6, centred=False)(x, numbers(WIDTH), none)
    return [normed, kernels.linear(COLUMNS)(normed, matrix(kernels), none)]


def gate(kernels: NativeKernels, recording: Recording) -> list[Symbol]:
    x = recording.input((2 * WIDTH,), np.float32)
    active = kernels.activation("silu", gated=True)(x)
    return [active, kernels.linear(COLUMNS)(active, matrix(kernels), numbers(COLUMNS))]


def gelu(kernels: NativeKernels, recording: Recording) -> list[Symbol]:
    x = recording.input((WIDTH,), np.float32)
    active = kernels.activation("gelu_tanh", gated=False)(x)
    return [active, kernels.linear(COLUMNS)(active, matrix(kernels), numbers(COLUMNS))]


@pytest.mark.parametrize("kind", [FLOAT32, BFLOAT16, INT8], ids=lambda kind: kind.name)
@pytest.mark.parametrize("record", [add_norm, norm, gate, gelu])
def test_a_row_has_the_bits_of_both_apart_and_alone(record: Record, kind: NumberType, variant: str) -> None:
    assert LIBRARY is not None
    kernels = NativeKernels(LIBRARY, kind)
    recording = Recording()
    between, *asked = record(kernels, recording)
    recording.outputs.extend(asked)
    apart = Recording(recording.inputs, recording.calls, [between, *asked])
    assert (len(fused(recording).calls), len(fused(apart).calls)) == (1, 2)
    program, reference = Program(recording, LIBRARY), Program(apart, LIBRARY)
    for rows in ROWS:
        inputs = [numbers(rows, *each.shape[1:]) + index for index, each in enumerate(recording.inputs)]
        found = program.run(inputs)
        for ours, theirs in zip(found, reference.run(inputs)[1:], strict=True):
            np.testing.assert_array_equal(ours, theirs)
        last = [each[-1:].copy() for each in found]
        for ours, theirs in zip(program.run([each[-1:] for each in inputs]), last, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_what_two_products_read_is_computed_once() -> None:
    assert LIBRARY is not None
    kernels, recording = NativeKernels(LIBRARY), Recording()
    normed, first = norm(kernels, recording)
    second = kernels.linear(COLUMNS)(normed, matrix(kernels), np.zeros(1, np.float32))
    recording.outputs.extend([first, second])
    assert [call.function for call in fused(recording).calls] == ["mb_norm", "mb_linear", "mb_linear"]
