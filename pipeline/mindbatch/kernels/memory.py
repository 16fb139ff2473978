"""What kernels keep weights and cache in, for whoever plans memory without MindSpore."""

from __future__ import annotations

from dataclasses import dataclass

from mindbatch.errors import ConfigError

HEAD_ALIGNMENT = 16  # numbers: a cached value head is padded to whole vectors of the widest instruction set


@dataclass(frozen=True)
class FloatType:
    """A type of numbers: its name in `model.dtype`, its name in safetensors, and bytes of one number."""

    name: str
    stored: str
    itemsize: int


FLOAT32, FLOAT16, BFLOAT16 = (
    FloatType("float32", "F32", 4),
    FloatType("float16", "F16", 2),
    FloatType("bfloat16", "BF16", 2),
)
DTYPES = {"CPU": (FLOAT32,), "Ascend": (BFLOAT16, FLOAT16)}
"""By device: the types that its kernels compute in, `model.dtype=auto` first."""

REFUSED = {
    "CPU": "where MindSpore has no usable MatMul for it; use float32 (files in half precision are converted "
    "as they are read)",
    "Ascend": "whose operators ReshapeAndCache, PagedAttention and ApplyRotaryPosEmb take float16 and "
    "bfloat16 only; use auto, bfloat16 or float16 (files in float32 are converted as they are read)",
}
"""By device: why it takes no other type, and what to use."""


def dtype_fault(dtype: str, device_target: str) -> str | None:
    """Why the kernels of the device do not compute in the type of `model.dtype`; None where they do."""
    if dtype == "auto" or dtype in [allowed.name for allowed in DTYPES[device_target]]:
        return None
    return f"model.dtype={dtype}: not with runtime.device_target={device_target}, {REFUSED[device_target]}"


def kernel_dtype(dtype: str, device_target: str) -> FloatType:
    """The type of weights, cache and hidden states.

    Raises:
        ConfigError: the kernels of the device do not compute in it.
    """
    if fault := dtype_fault(dtype, device_target):
        raise ConfigError(fault)
    allowed = DTYPES[device_target]
    return next((each for each in allowed if each.name == dtype), allowed[0])


def padded_head(head_dim: int) -> int:
    """Numbers of one value head in the native kernels' cache; the other kernels need no more than that."""
    return -(-head_dim // HEAD_ALIGNMENT) * HEAD_ALIGNMENT
