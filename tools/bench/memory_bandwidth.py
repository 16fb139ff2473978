"""Measures how fast this machine reads its memory: the bound of a step that reads all weights."""

from __future__ import annotations

import ctypes
import mmap
import threading
import time

import numpy as np
import numpy.typing as npt


def read_bandwidth(threads: int) -> float:
    """Measures the bytes per second that threads read from memory together: libc's memcmp over huge pages."""
    share = 256 << 20
    buffers = [(huge_zeros(share), huge_zeros(share)) for _ in range(threads)]
    memcmp = ctypes.CDLL(None).memcmp
    memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    best = 0.0
    for _ in range(7):
        readers = [
            threading.Thread(target=memcmp, args=(one.ctypes.data, two.ctypes.data, share))
            for one, two in buffers
        ]
        started = time.perf_counter()
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        best = max(best, 2 * threads * share / (time.perf_counter() - started))
    return best


def huge_zeros(size: int) -> npt.NDArray[np.uint8]:
    """Allocates bytes that are backed by memory, on huge pages where the system has them."""
    mapped = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapped.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(mapped, np.uint8)
    array[:] = 0
    return array
