"""What weights and cache are kept in, known without MindSpore."""

import pytest

from mindbatch.io.errors import ConfigError
from mindbatch.kernels.memory import DTYPES, kernel_dtype, padded_head


@pytest.mark.parametrize(("device_target", "name"), [("CPU", "float32"), ("Ascend", "bfloat16")])
def test_auto_is_the_first_type_of_the_device(device_target: str, name: str) -> None:
    assert kernel_dtype("auto", device_target) == DTYPES[device_target][0]
    assert kernel_dtype("auto", device_target).name == name


@pytest.mark.parametrize(
    ("device_target", "dtype", "reason"),
    [
        ("CPU", "float16", "whose kernels compute in float32 and bfloat16"),
        (
            "Ascend",
            "float32",
            "ReshapeAndCache, PagedAttention and ApplyRotaryPosEmb take float16 and bfloat16",
        ),
    ],
)
def test_a_type_that_no_kernel_computes_in_is_refused(device_target: str, dtype: str, reason: str) -> None:
    with pytest.raises(
        ConfigError, match=f"{dtype}: not with runtime.device_target={device_target}.*{reason}"
    ):
        kernel_dtype(dtype, device_target)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_ascend_has_both_half_types(dtype: str) -> None:
    assert (kernel_dtype(dtype, "Ascend").name, kernel_dtype(dtype, "Ascend").itemsize) == (dtype, 2)


def test_heads_are_padded_to_whole_vectors() -> None:
    assert [padded_head(size) for size in (1, 16, 17, 64)] == [16, 16, 32, 64]
