"""Counter-based random numbers: the same (seed, row, sample, step) gives the same number anywhere."""

import hashlib

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mindbatch.decoding.softmax import kernels_library

_ROUNDS = 10
_SAMPLE_BITS = 28
_WORD_BITS = np.uint64(32)
_WORD_MASK = np.uint64(0xFFFFFFFF)
# Columns, for words 0 and 2 of the counter and words 0 and 1 of the key.
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], dtype=np.uint64)
_WEYL_STEPS = np.array([[0x9E3779B9], [0xBB67AE85]], dtype=np.uint64)


def philox4x32(counters: NDArray[np.uint64], keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Philox4x32-10 on S counters: words [4, S] and keys [2, S], each below 2**32, to words [4, S].

    By the C++ kernels where they are built: NumPy takes a third of a millisecond for the rows of a step.
    Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 3.3.
    """
    library = kernels_library()
    if library is None:
        return philox4x32_by_numpy(counters, keys)
    words = np.empty_like(counters, order="C")
    library.philox(np.ascontiguousarray(counters), np.ascontiguousarray(keys), words)
    return words


def philox4x32_by_numpy(counters: NDArray[np.uint64], keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Computes `philox4x32` without the kernels."""
    even, odd = counters[0::2], counters[1::2]
    for _ in range(_ROUNDS):
        # Words are in 64 bits, so that a product holds both of its halves. They change places as in the
        # paper: (hi1 ^ c1 ^ k0, lo1, hi0 ^ c3 ^ k1, lo0).
        products = even * _MULTIPLIERS
        even = (products >> _WORD_BITS)[::-1] ^ odd ^ keys
        odd = (products & _WORD_MASK)[::-1]
        keys = (keys + _WEYL_STEPS) & _WORD_MASK
    return np.stack([even[0], odd[0], even[1], odd[1]])


def uniform(
    seeds: ArrayLike, row_hashes: ArrayLike, samples: ArrayLike, steps: ArrayLike, stream: int = 0
) -> NDArray[np.float64]:
    """One number in [0, 1) for each of S places, of 53 random bits.

    `seeds` and `row_hashes` are 64-bit, `samples` below 2**28 and `steps` below 2**32; the four broadcast to
    [S]. `stream`, 0 to 15, separates draws of one place that serve different ends.
    """
    words = (np.asarray(values, dtype=np.uint64) for values in (seeds, row_hashes, samples, steps))
    seed, row, sample, step = np.broadcast_arrays(*(np.atleast_1d(word) for word in words))
    sample = sample | np.uint64(stream << _SAMPLE_BITS)
    keys = np.stack([seed & _WORD_MASK, seed >> _WORD_BITS])
    counters = np.stack([row & _WORD_MASK, row >> _WORD_BITS, sample, step])
    first, second = philox4x32(counters, keys)[:2]
    # 27 bits of one word and 26 of the other: as many as a float64 has.
    bits = ((first >> np.uint64(5)) << np.uint64(26)) | (second >> np.uint64(6))
    numbers: NDArray[np.float64] = bits * 2.0**-53
    return numbers


def row_hash(key: str) -> int:
    """The 64-bit number of a row's key: BLAKE2b (RFC 7693) of its UTF-8, little-endian."""
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")
