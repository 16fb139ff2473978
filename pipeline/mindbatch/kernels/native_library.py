"""Finding and loading the compiled CPU kernels, without MindSpore."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import TYPE_CHECKING

from mindbatch.errors import ConfigError

if TYPE_CHECKING:  # which loads MindSpore
    from mindbatch.kernels.arrays import Array, FloatArray

VARIANTS = ("avx512_vnni", "avx512", "avx2", "portable")


@dataclass(frozen=True)
class NativeLibrary:
    """The compiled kernels: where they are and the handle that controls their threads and variant."""

    path: Path
    handle: ctypes.CDLL

    @property
    def variant(self) -> str:
        """The instruction set in use, of VARIANTS."""
        name: bytes = self.handle.mb_variant()
        return name.decode()

    @property
    def num_threads(self) -> int:
        return int(self.handle.mb_num_threads())

    def set_num_threads(self, count: int) -> None:
        """Takes effect before the first kernel runs; threads that have started stay."""
        self.handle.mb_set_num_threads(count)

    @property
    def has_adapters(self) -> bool:
        """False of a library that was built before there were any."""
        return hasattr(self.handle, "mb_adapted_embed")

    def meeting_bytes(self, size: int) -> int:
        """Bytes of memory in which so many ranks meet; 0 of a library that was built before there was any."""
        if not hasattr(self.handle, "mb_hand_over"):
            return 0
        count = self.handle.mb_meeting_bytes
        count.restype = ctypes.c_int64
        return int(count(size))

    def join_meeting(self, file: int, rank: int, size: int) -> int:
        """Maps an open file of `meeting_bytes`; the number that the meeting has in this process."""
        number = int(self.handle.mb_join_meeting(file, rank, size))
        assert number >= 0, "too many meetings, or no memory for one more"
        return number

    def pack(self, kind: int, rows: FloatArray, packed: Array, first_output: int) -> int:
        """Rounds rows [n, inputs] into a packed matrix (csrc/packing.cpp); counts the finite numbers lost."""
        sizes = (*rows.shape, *(stride // rows.itemsize for stride in rows.strides))
        return int(self.handle.mb_pack(kind, rows.ctypes.data, *sizes, packed.ctypes.data, first_output))

    def set_variant(self, name: str) -> None:
        """Uses another instruction set than the best one.

        Raises:
            ConfigError: the variant is unknown or this machine cannot run it.
        """
        if not self.handle.mb_set_variant(name.encode()):
            raise ConfigError(f"kernel variant {name!r}: not available on this machine; choose of {VARIANTS}")


@lru_cache(maxsize=1)
def find_library() -> NativeLibrary | None:
    """The library that setup.py built beside this file, or None where no compiler was there."""
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_cpu{suffix}")
        if path.exists():
            return NativeLibrary(path, _open(path))
    return None


def _open(path: Path) -> ctypes.CDLL:
    handle = ctypes.CDLL(str(path))
    handle.mb_variant.restype = ctypes.c_char_p
    handle.mb_set_variant.argtypes = [ctypes.c_char_p]
    handle.mb_set_num_threads.argtypes = [ctypes.c_int]
    if hasattr(handle, "mb_pack"):  # not of a library that was built before weights could be rounded
        number, pointer = ctypes.c_int64, ctypes.c_void_p
        handle.mb_pack.argtypes = [ctypes.c_int, pointer, *[number] * 4, pointer, number]
        handle.mb_pack.restype = number
    return handle


def describe() -> str:
    """One line for people: which kernels there are and how they run."""
    library = find_library()
    if library is None:
        return "not built: no C++ compiler was found when mindbatch was installed; MindSpore operators serve"
    return f"native ({library.variant}, {library.num_threads} threads)"
