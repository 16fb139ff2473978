"""Which kernels a run uses: the C++ ones, MindSpore's own operators, or those of the NPU."""

from __future__ import annotations

from mindbatch.errors import ConfigError
from mindbatch.kernels.interface import Kernels
from mindbatch.kernels.memory import FloatType, kernel_dtype
from mindbatch.kernels.native_library import describe, find_library

CHOICES = ("auto", "native", "reference")


def choose_kernels(
    name: str, device_target: str, num_threads: int | None = None, dtype: str = "auto"
) -> Kernels:
    """The kernels for a device. "auto" takes the fastest that are there.

    num_threads: of the native kernels; None is one for each core.
    dtype: as `model.dtype` asks for it.

    Raises:
        ConfigError: the name is unknown or not one of the device's, native kernels are asked for and were not
            built, or the device's kernels do not compute in the dtype.
    """
    if name not in CHOICES:
        raise ConfigError(f"runtime.kernels={name!r}: allowed: {', '.join(CHOICES)}")
    float_type = kernel_dtype(dtype, device_target)
    kernels = _kernels(name, device_target, num_threads, float_type)
    assert kernels.float_type == float_type
    return kernels


def _kernels(name: str, device_target: str, num_threads: int | None, float_type: FloatType) -> Kernels:
    if device_target == "Ascend":
        if name != "auto":
            raise ConfigError(
                f"runtime.kernels={name}: not with runtime.device_target=Ascend, which has kernels of its "
                "own; use auto"
            )
        from mindbatch.kernels.ascend.kernels import AscendKernels

        return AscendKernels(float_type)
    library = None if name == "reference" else find_library()
    if name == "native" and library is None:
        raise ConfigError(f"runtime.kernels=native: {describe()}; install a C++ compiler and reinstall")
    if library is None:
        from mindbatch.kernels.reference import ReferenceKernels

        return ReferenceKernels()
    from mindbatch.kernels.native import NativeKernels

    if num_threads is not None:
        library.set_num_threads(num_threads)
    return NativeKernels(library)
