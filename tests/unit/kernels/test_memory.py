"""What weights and cache are kept in, known without MindSpore."""

import pytest

from mindbatch.errors import ConfigError
from mindbatch.kernels.memory import DTYPES, kernel_dtype, padded_head


@pytest.mark.parametrize("device_target", DTYPES)
def test_auto_is_the_first_type_of_the_device(device_target: str) -> None:
    assert kernel_dtype("auto", device_target) == DTYPES[device_target][0]


@pytest.mark.parametrize("device_target", DTYPES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_type_that_no_kernel_computes_in_is_refused(dtype: str, device_target: str) -> None:
    with pytest.raises(ConfigError, match=f"{dtype}: not with runtime.device_target={device_target}"):
        kernel_dtype(dtype, device_target)


def test_heads_are_padded_to_whole_vectors() -> None:
    assert [padded_head(size) for size in (1, 16, 17, 64)] == [16, 16, 32, 64]
