"""Choice of a run's kernels: the C++ ones, NumPy's functions, or those of the NPU."""

from __future__ import annotations

from collections.abc import Iterator

from mindbatch.io.errors import ConfigError
from mindbatch.kernels.interface import Kernels
from mindbatch.kernels.memory import (
    AS_STORED,
    FLOAT32,
    FloatType,
    NumberType,
    cache_type,
    kernel_dtype,
    weight_type,
)
from mindbatch.kernels.native_library import find_library, library_text

CHOICES = ("auto", "native", "reference")
COMMON_SET = "avx512_bf16"
"""The best instruction set of processors with AMX whose bits are those of all others."""


def choose_kernels(
    name: str,
    device_target: str,
    num_threads: int | None = None,
    dtype: str = "auto",
    quantization: str | None = None,
    instruction_set: str = "auto",
    cache_dtype: str = "auto",
    arithmetic: str = "auto",
) -> Kernels:
    """The kernels for a device. "auto" takes the fastest that are there.

    num_threads: of the native kernels; None is one for each core.
    dtype, quantization, cache_dtype: as these keys of `model` name them.
    instruction_set: of the native kernels; "auto" leaves it as it is in this process, at first the best one.
    arithmetic: "vectors" takes the best one below AMX, whose bits are its own; "auto" the fastest.

    Raises:
        ConfigError: the name is unknown or not one of the device's, native kernels are requested and were not
            built, or the kernels do not compute in the dtype or keep weights or the cache so, or the machine
            does not have the instruction set.
    """
    if name not in CHOICES:
        raise ConfigError(f"runtime.kernels={name!r}: allowed: {', '.join(CHOICES)}")
    float_type, weights = kernel_dtype(dtype, device_target), weight_type(dtype, quantization, device_target)
    cache = cache_type(cache_dtype, dtype, quantization, device_target)
    if device_target == "Ascend":
        if name != "auto":
            raise ConfigError(
                f"runtime.kernels={name}: not with runtime.device_target=Ascend, which has kernels of its "
                "own; use auto"
            )
        from mindbatch.kernels.ascend.kernels import AscendKernels

        return AscendKernels(float_type)
    library = None if name == "reference" else find_library()
    if library is None:
        return _reference(name, weights, cache)
    from mindbatch.kernels.native import NativeKernels

    if num_threads is not None:
        library.set_num_threads(num_threads)
    if instruction_set != "auto":
        library.set_variant(instruction_set)
    elif arithmetic == "vectors" and library.variant == "amx":
        library.set_variant(COMMON_SET)
    return NativeKernels(library, weights, cache, keeps_codes=quantization == AS_STORED)


def _reference(name: str, weights: NumberType, cache: FloatType) -> Kernels:
    if name == "native":
        raise ConfigError(f"runtime.kernels=native: {library_text(computes=False)}")
    for kept, kind in (("weights", weights), ("a cache", cache)):
        if kind != FLOAT32:
            raise ConfigError(
                f"{kept} in {kind.name}: needs the native kernels, and these are "
                f"{library_text(computes=False)}"
            )
    from mindbatch.kernels.reference import ReferenceKernels

    return ReferenceKernels()


def keep_codes(name: str, device_target: str, quantization: str | None) -> bool:
    """True if kernels of this name keep numbers of quantised folders in their own bits."""
    is_ours = device_target == "CPU" and name != "reference"
    return is_ours and quantization == AS_STORED and find_library() is not None


def kernel_notes(name: str, device_target: str) -> Iterator[str]:
    """Yields the note that NumPy computes for want of the C++ kernels."""
    if name == "auto" and device_target == "CPU" and find_library() is None:
        yield f"the C++ kernels are {library_text()}"


def kernels_in_use(name: str, device_target: str) -> str:
    """Names the kernels of this process, once chosen: an instruction set, or other kernels by name."""
    if device_target == "Ascend":
        return "ascend"
    library = None if name == "reference" else find_library()
    return "reference" if library is None else library.variant
