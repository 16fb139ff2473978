"""Number types in which kernels keep weights and cache, to plan memory without MindSpore."""

from dataclasses import dataclass

from mindbatch.io.errors import ConfigError

HEAD_ALIGNMENT = 16  # numbers: a cached value head is padded to whole vectors of the widest instruction set


@dataclass(frozen=True)
class NumberType:
    """A type of numbers: its name in `model.dtype` or `model.quantization`, and bytes of one number."""

    name: str
    itemsize: int


@dataclass(frozen=True)
class FloatType(NumberType):
    """A type that files may hold. stored: its name in safetensors."""

    stored: str


FLOAT32, FLOAT16, BFLOAT16 = (
    FloatType("float32", 4, "F32"),
    FloatType("float16", 2, "F16"),
    FloatType("bfloat16", 2, "BF16"),
)
INT8 = NumberType("int8", 1)
DTYPES = {"CPU": (FLOAT32, BFLOAT16), "Ascend": (BFLOAT16, FLOAT16)}
"""By device: the types that its kernels compute in, `model.dtype=auto` first."""

AS_STORED = "auto"
"""The value of `model.quantization` with which numbers of quantised folders are kept in their own bits."""

QUANTIZATIONS = {"CPU": (INT8,), "Ascend": ()}
"""By device: the types beside them that its kernels keep weights in."""

REFUSED = {
    "CPU": "whose kernels compute in float32 and bfloat16; use auto, float32 or bfloat16 (files in half "
    "precision are converted as they are read)",
    "Ascend": "whose operators ReshapeAndCache, PagedAttention and ApplyRotaryPosEmb take float16 and "
    "bfloat16 only; use auto, bfloat16 or float16 (files in float32 are converted as they are read)",
}
"""By device: why it takes no other type, and what to use."""


def dtype_error(dtype: str, device_target: str) -> str | None:
    """Reason why the device's kernels do not compute in the type of `model.dtype`; None if they do."""
    if dtype == "auto" or dtype in [allowed.name for allowed in DTYPES[device_target]]:
        return None
    return f"model.dtype={dtype}: not with runtime.device_target={device_target}, {REFUSED[device_target]}"


def quantization_error(quantization: str | None, dtype: str, device_target: str) -> str | None:
    """Reason why the device's kernels do not keep weights so; None if they do, or none is requested."""
    if quantization in (None, AS_STORED):
        return None
    if quantization not in [allowed.name for allowed in QUANTIZATIONS[device_target]]:
        return (
            f"model.quantization={quantization}: not with runtime.device_target={device_target}; "
            f"allowed: {AS_STORED}, null"
        )
    if dtype not in ("auto", FLOAT32.name):
        return f"model.quantization={quantization}: not with model.dtype={dtype}; allowed: auto, float32"
    return None


def weight_type(dtype: str, quantization: str | None, device_target: str) -> NumberType:
    """The type of matrices, unless they are kept as stored; vectors and hidden states have `kernel_dtype`.

    Raises:
        ConfigError: the kernels of the device do not keep weights so.
    """
    if error := dtype_error(dtype, device_target) or quantization_error(quantization, dtype, device_target):
        raise ConfigError(error)
    known = (*DTYPES[device_target], *QUANTIZATIONS[device_target])
    name = dtype if quantization in (None, AS_STORED) else quantization
    return next((number_type for number_type in known if number_type.name == name), known[0])


def kernel_dtype(dtype: str, device_target: str) -> FloatType:
    """The type of vectors and hidden states: on a CPU float32, whatever the matrices are kept in.

    Raises:
        ConfigError: the kernels of the device do not compute in it.
    """
    if error := dtype_error(dtype, device_target):
        raise ConfigError(error)
    if device_target == "CPU":
        return FLOAT32
    allowed = DTYPES[device_target]
    return next((float_type for float_type in allowed if float_type.name == dtype), allowed[0])


def cache_type(cache_dtype: str, dtype: str, quantization: str | None, device_target: str) -> FloatType:
    """The type of cached keys and values: what the kernels compute in, or what they widen as they read it.

    "auto" is bfloat16 on a CPU beside matrices that are rounded, too, as those of bfloat16 and int8 are.

    Raises:
        ConfigError: see `kernel_dtype`; or the kernels do not keep a cache in it.
    """
    if error := cache_error(cache_dtype, dtype, device_target):
        raise ConfigError(error)
    if device_target != "CPU":
        return kernel_dtype(dtype, device_target)
    if cache_dtype == "auto":
        return FLOAT32 if weight_type(dtype, quantization, device_target) == FLOAT32 else BFLOAT16
    return BFLOAT16 if cache_dtype == BFLOAT16.name else FLOAT32


def cache_error(cache_dtype: str, dtype: str, device_target: str) -> str | None:
    """Reason why the device's kernels do not keep a cache of `model.cache_dtype`; None if they do."""
    own = kernel_dtype(dtype, device_target).name
    allowed = ("auto", own, *([BFLOAT16.name] if device_target == "CPU" else []))
    if cache_dtype in allowed:
        return None
    return (
        f"model.cache_dtype={cache_dtype}: not with runtime.device_target={device_target} and "
        f"model.dtype={dtype}; allowed: {', '.join(allowed)}"
    )


def padded_head(head_dim: int) -> int:
    """Numbers of one value head in the native kernels' cache; the other kernels need no more than that."""
    return -(-head_dim // HEAD_ALIGNMENT) * HEAD_ALIGNMENT
