"""How kernels keep weights and cache in memory, for whoever plans it without MindSpore."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mindbatch.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

HEAD_ALIGNMENT = 16  # numbers: a cached value head is padded to whole vectors of the widest instruction set
DTYPES = {"CPU": ("float32",), "Ascend": ("float32",)}
"""By device: the types that its kernels compute in, `model.dtype=auto` first."""


def kernel_dtype(dtype: str, device_target: str) -> np.dtype[Any]:
    """The type of weights, cache and hidden states.

    Raises:
        ConfigError: the kernels of the device do not compute in it.
    """
    import numpy as np  # not needed to read or print a configuration

    allowed = DTYPES[device_target]
    chosen = allowed[0] if dtype == "auto" else dtype
    if chosen not in allowed:
        raise ConfigError(
            f"model.dtype={dtype}: not with runtime.device_target={device_target}, whose kernels do not "
            f"compute in it; allowed: auto, {', '.join(allowed)}"
        )
    return np.dtype(chosen)


def padded_head(head_dim: int) -> int:
    """Numbers of one value head in the native kernels' cache; the other kernels need no more than that."""
    return -(-head_dim // HEAD_ALIGNMENT) * HEAD_ALIGNMENT
