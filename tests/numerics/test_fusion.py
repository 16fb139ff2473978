"""What is computed beside products: norms and activations as they read, summaries of their logits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from kernel_runs import native_library, numbers, recording_of
from numpy.typing import NDArray

from mindbatch.decoding import DecodingParams
from mindbatch.decoding.draws import Draw, draw_tokens
from mindbatch.kernels.arrays import Array
from mindbatch.kernels.memory import BFLOAT16, FLOAT32, INT8, NumberType
from mindbatch.kernels.native import NativeKernels
from mindbatch.kernels.native_library import NativeLibrary
from mindbatch.kernels.native_program import NativeProgram, fused, summarised
from mindbatch.kernels.native_weights import PANEL
from mindbatch.kernels.operations import dense
from mindbatch.kernels.operations.dense import capped, linear
from mindbatch.kernels.recording import Recording, Symbol, with_added_norms
from mindbatch.kernels.reference import ReferenceProgram

pytestmark = pytest.mark.usefixtures("variant")
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


HIDDEN = 48
UNIFORMS = np.random.default_rng(3).random(40)


def head(kind: NumberType, vocabulary: int, spread: float = 1.0) -> Recording:
    """A head of random weights."""
    kernels = NativeKernels(native_library(), kind)
    packed = kernels.packed_zeros(vocabulary, HIDDEN)
    weights = np.random.default_rng(vocabulary).standard_normal((vocabulary, HIDDEN)).astype(np.float32)
    kernels.pack(packed, 0, spread * weights)
    hidden = np.zeros((1, HIDDEN), np.float32)
    return kernels.lowered(recording_of(lambda x: linear(x, packed, None, outputs=vocabulary), hidden))


def run_head(recording: Recording, hidden: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    return NativeProgram(recording, native_library()).run([hidden])


def as_panels(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """[S, panels, PANEL], with minus infinity behind the last logit."""
    room = -logits.shape[1] % PANEL
    padded = np.pad(logits.astype(np.float64), ((0, 0), (0, room)), constant_values=-np.inf)
    return padded.reshape(len(logits), -1, PANEL)


@pytest.mark.parametrize("kind", [FLOAT32, BFLOAT16, INT8], ids=str)
@pytest.mark.parametrize("vocabulary", [1, 31, 32, 1000, 5003, 40017])
@pytest.mark.parametrize("rows", [1, 3, 33])
def test_a_summary_has_the_largest_and_the_sums_of_panels(
    kind: NumberType, vocabulary: int, rows: int
) -> None:
    recording, hidden = head(kind, vocabulary), numbers(rows, HIDDEN)
    logits, summary = run_head(summarised(recording), hidden)
    assert logits.tobytes() == run_head(recording, hidden)[0].tobytes()
    panels = as_panels(logits)
    assert summary.shape == (rows, 2, panels.shape[1])
    np.testing.assert_array_equal(summary[:, 0], panels.max(axis=2))
    sums = np.exp(panels - panels.max(axis=2, keepdims=True)).sum(axis=2)
    np.testing.assert_allclose(summary[:, 1], sums, rtol=2e-6)


@pytest.mark.parametrize("rule", [{}, {"top_k": 0}, {"top_k": 0, "top_p": 0.9}, {"top_k": 7}], ids=str)
@pytest.mark.parametrize("spread", [0.05, 1.0])
def test_tokens_are_the_same_with_and_without_a_summary(rule: dict[str, float], spread: float) -> None:
    logits, summary = run_head(summarised(head(FLOAT32, 5003, spread)), numbers(9, HIDDEN))
    params = DecodingParams(do_sample=True, **rule)
    draws = [None, *[Draw(None, params, UNIFORMS)] * 7, Draw(logits[0].copy(), params, UNIFORMS)]
    given, computed = draw_tokens(logits, draws, summary), draw_tokens(logits, draws)
    assert given.tokens == computed.tokens
    np.testing.assert_array_equal(given.likeliest, computed.likeliest)
    np.testing.assert_array_equal(given.normalisers, computed.normalisers)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_summary_tells_rows_that_are_not_finite(wrong: float) -> None:
    hidden = numbers(3, HIDDEN)
    hidden[1, 5] = wrong
    logits, summary = run_head(summarised(head(FLOAT32, 1000)), hidden)
    drawn = draw_tokens(logits, [None] * 3, summary)
    np.testing.assert_array_equal(np.isfinite(drawn.normalisers), [True, False, True])


def test_logits_that_are_no_products_have_no_summary() -> None:
    recording = head(FLOAT32, 100)
    recording.outputs[0] = capped(recording.outputs[0], cap=3.0)
    assert summarised(recording) is recording
