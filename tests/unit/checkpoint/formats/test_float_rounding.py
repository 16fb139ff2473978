"""Rounding to float16 and bfloat16: to the nearest, ties to even, whatever the source; NaN stays NaN."""

import numpy as np
import pytest

from mindbatch.checkpoint.formats.floats import converted, is_converted

EVERY_HALF = np.arange(1 << 16, dtype=np.uint16)


def bits(*values: int) -> np.ndarray:
    return np.array(values, np.uint32).view(np.float32)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0x3F80_0000, 0x3F80),  # 1
        (0x3F80_7FFF, 0x3F80),  # just below half of the last place
        (0x3F80_8000, 0x3F80),  # a tie, even already
        (0x3F80_8001, 0x3F81),
        (0x3F81_8000, 0x3F82),  # a tie, to the even one above
        (0xBF81_8000, 0xBF82),
        (0x0000_8000, 0x0000),  # subnormal tie
        (0x0000_8001, 0x0001),
        (0x8000_0000, 0x8000),  # -0
        (0x7F80_0000, 0x7F80),  # infinity
    ],
)
def test_float32_to_bfloat16(value: int, expected: int) -> None:
    found, num_overflows = converted(bits(value), "F32", "BF16")
    assert (found[0], num_overflows) == (expected, 0)


@pytest.mark.parametrize("value", [0x7F80_0001, 0x7FFF_FFFF, 0xFFC0_0000, 0x7FC0_8000])
def test_nan_stays_nan_and_keeps_its_sign(value: int) -> None:
    found, num_overflows = converted(bits(value), "F32", "BF16")
    assert num_overflows == 0
    assert found[0] & 0x7F80 == 0x7F80
    assert found[0] & 0x007F
    assert found[0] >> 15 == value >> 31


def test_overflows_are_counted_and_infinities_are_not() -> None:
    large = np.array([3.4e38, -3.4e38, np.inf, 1e38, np.nan], np.float32)
    assert converted(large, "F32", "BF16")[1] == 2
    assert converted(large, "F32", "F16")[1] == 3
    assert converted(np.array([65504, 65519.9, 65520, -65520], np.float32), "F32", "F16")[1] == 2


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_every_half_survives_float32(dtype: str) -> None:
    halves = EVERY_HALF.view(np.float16) if dtype == "F16" else EVERY_HALF
    wide, _ = converted(halves, dtype, "F32")
    back, num_overflows = converted(wide, "F32", dtype)
    is_nan = np.isnan(wide)
    assert num_overflows == 0
    assert wide.dtype == np.float32
    np.testing.assert_array_equal(back.view(np.uint16)[~is_nan], EVERY_HALF[~is_nan])
    assert np.isnan(converted(back, dtype, "F32")[0][is_nan]).all()


def test_bfloat16_to_float16_rounds_once_and_back() -> None:
    finite = EVERY_HALF[(EVERY_HALF & 0x7F80) != 0x7F80]
    wide = (finite.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(over="ignore"):
        expected = wide.astype(np.float16)
    found, num_overflows = converted(finite, "BF16", "F16")
    np.testing.assert_array_equal(found, expected)
    assert num_overflows == np.isinf(expected).sum()


def test_what_is_no_float_is_not_converted() -> None:
    assert not is_converted("I64", "I64")
    with pytest.raises(ValueError, match="I64 does not become F16"):
        is_converted("I64", "F16")
