"""What Ascend's operators do not take is refused in the words of the configuration."""

import pytest

from mindbatch.kernels.ascend.step import (
    flash_is_legal,
    limit_faults,
    most_gathered_tokens,
    needs_gathering,
)
from mindbatch.kernels.memory import BFLOAT16, FLOAT16


@pytest.mark.parametrize(
    ("head_dim", "block_size", "expected"),
    [
        (128, 128, None),
        (256, 64, None),
        (24, 16, None),
        (128, 8, "runtime.block_size=8: .*multiples of 16 up to 128"),
        (320, 16, "heads of 320 numbers: .*at most 256"),
        (256, 128, "runtime.block_size=128: .*at most 16384 .*: at most 64"),
    ],
)
def test_limits(head_dim: int, block_size: int, expected: str | None) -> None:
    faults = list(limit_faults(head_dim, block_size))
    assert len(faults) == (expected is not None)
    if expected:
        head, _, rest = expected.partition(".*")
        assert faults[0].startswith(head)
        for words in rest.split(".*"):
            assert words in faults[0]
        assert "runtime.device_target=Ascend" in faults[0]


def test_what_plain_operators_compute_has_no_limits_of_heads() -> None:
    assert not needs_gathering(256, is_rounded=False, has_softcap=False)
    for head_dim, is_rounded, has_softcap in ((576, False, False), (64, True, False), (64, False, True)):
        assert needs_gathering(head_dim, is_rounded=is_rounded, has_softcap=has_softcap)
    assert list(limit_faults(576, 128, is_gathered=True)) == []
    [fault] = limit_faults(576, 8, is_gathered=True)
    assert fault.startswith("runtime.block_size=8")
    assert most_gathered_tokens(2048, 2 * 4 * 256) == 128


@pytest.mark.parametrize(("head_dim", "legal"), [(16, True), (24, False), (128, True), (272, False)])
def test_flash_attention_takes_heads_of_whole_sixteens(head_dim: int, legal: bool) -> None:
    assert flash_is_legal(8, head_dim, BFLOAT16) == legal
    assert not flash_is_legal(8, head_dim, FLOAT16)


def test_flash_attention_takes_at_most_256_heads() -> None:
    assert flash_is_legal(256, 128, BFLOAT16)
    assert not flash_is_legal(257, 128, BFLOAT16)
