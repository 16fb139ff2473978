"""What a head's product says of its logits, in every number format and instruction set, and who uses it."""

import numpy as np
import pytest
from kernel_runs import native_library, numbers, recording_of
from numpy.typing import NDArray

from mindbatch.decoding import DecodingParams
from mindbatch.decoding.draws import Draw, draw_tokens
from mindbatch.kernels.memory import BFLOAT16, FLOAT32, INT8, NumberType
from mindbatch.kernels.native import NativeKernels
from mindbatch.kernels.native_program import NativeProgram, summarised
from mindbatch.kernels.native_weights import PANEL
from mindbatch.kernels.operations.dense import capped, linear
from mindbatch.kernels.recording import Recording

WIDTH = 48
pytestmark = pytest.mark.usefixtures("variant")
UNIFORMS = np.random.default_rng(3).random(40)


def head(kind: NumberType, vocabulary: int, spread: float = 1.0) -> Recording:
    """A head of random weights."""
    kernels = NativeKernels(native_library(), kind)
    packed = kernels.packed_zeros(vocabulary, WIDTH)
    weights = np.random.default_rng(vocabulary).standard_normal((vocabulary, WIDTH)).astype(np.float32)
    kernels.pack(packed, 0, spread * weights)
    hidden = np.zeros((1, WIDTH), np.float32)
    return kernels.lowered(recording_of(lambda x: linear(x, packed, None, outputs=vocabulary), hidden))


def run(recording: Recording, hidden: NDArray[np.float32]) -> list[NDArray[np.float32]]:
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
    recording, hidden = head(kind, vocabulary), numbers(rows, WIDTH)
    logits, summary = run(summarised(recording), hidden)
    assert logits.tobytes() == run(recording, hidden)[0].tobytes()
    panels = as_panels(logits)
    assert summary.shape == (rows, 2, panels.shape[1])
    np.testing.assert_array_equal(summary[:, 0], panels.max(axis=2))
    sums = np.exp(panels - panels.max(axis=2, keepdims=True)).sum(axis=2)
    np.testing.assert_allclose(summary[:, 1], sums, rtol=2e-6)


@pytest.mark.parametrize("rule", [{}, {"top_k": 0}, {"top_k": 0, "top_p": 0.9}, {"top_k": 7}], ids=str)
@pytest.mark.parametrize("spread", [0.05, 1.0])
def test_tokens_are_the_same_with_and_without_a_summary(rule: dict[str, float], spread: float) -> None:
    logits, summary = run(summarised(head(FLOAT32, 5003, spread)), numbers(9, WIDTH))
    params = DecodingParams(do_sample=True, **rule)
    draws = [None, *[Draw(None, params, UNIFORMS)] * 7, Draw(logits[0].copy(), params, UNIFORMS)]
    given, computed = draw_tokens(logits, draws, summary), draw_tokens(logits, draws)
    assert given.tokens == computed.tokens
    np.testing.assert_array_equal(given.likeliest, computed.likeliest)
    np.testing.assert_array_equal(given.normalisers, computed.normalisers)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_summary_tells_rows_that_are_not_finite(wrong: float) -> None:
    hidden = numbers(3, WIDTH)
    hidden[1, 5] = wrong
    logits, summary = run(summarised(head(FLOAT32, 1000)), hidden)
    drawn = draw_tokens(logits, [None] * 3, summary)
    np.testing.assert_array_equal(np.isfinite(drawn.normalisers), [True, False, True])


def test_logits_that_are_no_products_have_no_summary() -> None:
    recording = head(FLOAT32, 100)
    recording.outputs[0] = capped(recording.outputs[0], cap=3.0)
    assert summarised(recording) is recording
