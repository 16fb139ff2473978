"""Reduces a step's rows of logits: the likeliest tokens, log-probabilities, tokens drawn by sampling.

All rows at once by the C++ kernels, on all their threads, where they are built and have a row's filters; else
by NumPy.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mindbatch.decoding.filters import active_filters, sampling_candidates
from mindbatch.decoding.params import DecodingParams
from mindbatch.decoding.softmax import Summary, kernels_library, likeliest_and_normalisers
from mindbatch.kernels.native_library import NativeLibrary

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
    even, odd = counters[0::2], counters[1::2]
    for _ in range(_ROUNDS):
        # Words are in 64 bits, so that a product holds both of its halves. They are exchanged as in the
        # paper: (hi1 ^ c1 ^ k0, lo1, hi0 ^ c3 ^ k1, lo0).
        products = even * _MULTIPLIERS
        even = (products >> _WORD_BITS)[::-1] ^ odd ^ keys
        odd = (products & _WORD_MASK)[::-1]
        keys = (keys + _WEYL_STEPS) & _WORD_MASK
    return np.stack([even[0], odd[0], even[1], odd[1]])


def uniform(
    seeds: ArrayLike, row_hashes: ArrayLike, samples: ArrayLike, steps: ArrayLike, stream: int = 0
) -> NDArray[np.float64]:
    """Returns a number in [0, 1) of 53 random bits for each of S draws.

    `seeds` and `row_hashes` are 64-bit, `samples` below 2**28 and `steps` below 2**32; the four broadcast to
    [S]. `stream`, 0 to 15, separates draws of the same sample and step for different uses.
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
    """Returns the 64-bit number of a row's key: BLAKE2b (RFC 7693) of its UTF-8, little-endian."""
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


_NATIVE_FILTERS = frozenset({"top_k", "top_p", "min_p"})
_RULE = np.dtype([("temperature", "f4"), ("top_k", "i4"), ("tail", "f4"), ("min_p", "f4")])
"""DrawRule of kernels/csrc/variant_table.h."""
_NO_RULE = (1.0, 0, -1.0, 0.0)
_NOT_DRAWN = -1
_LARGEST_TOP_K = 2**31 - 1
_NONE = np.empty(0)


@dataclass(slots=True, frozen=True)
class Draw:
    """One row's draw: a token for each of the uniform numbers [m] in [0, 1), by the row's parameters.

    scores: [V], what the row's logits were changed to; None for the logits.
    """

    scores: NDArray[np.float32] | None
    params: DecodingParams
    uniforms: NDArray[np.float64]


@dataclass(slots=True, frozen=True)
class Drawn:
    """Results of draws from S rows of logits.

    likeliest: [S], the index of each row's largest logit, the lowest among equals.
    normalisers: [S]; a row's logits minus its normaliser are log-probabilities (nats).
    tokens: the tokens of each row's draw, or its error; undefined where logits are not finite.
    """

    likeliest: NDArray[np.int64]
    normalisers: NDArray[np.float64]
    tokens: list[list[int] | Exception]


def draw_tokens(logits: NDArray[np.float32], draws: Sequence[Draw | None], summary: Summary = None) -> Drawn:
    """Makes the draws of each row, if any, from `logits` [S, V]; rows do not affect each other.

    summary: of the logits: see `likeliest_and_normalisers`.

    Kernels or NumPy is a matter of a row's parameters alone. Both come to the same tokens but where sums that
    are equal up to rounding decide.
    """
    library = kernels_library()
    tokens: list[list[int]] = [[] for _ in draws]
    if library is None or not any(draws):
        likeliest, normalisers = likeliest_and_normalisers(logits, summary)
        if not any(draws):
            return Drawn(likeliest, normalisers, [*tokens])
    else:
        likeliest, normalisers, tokens = _by_kernels(library, np.ascontiguousarray(logits), draws, summary)
    tokens_by_row: list[list[int] | Exception] = []
    for row, draw, drawn, normaliser in zip(logits, draws, tokens, normalisers.tolist(), strict=True):
        is_done = draw is None or (drawn and _NOT_DRAWN not in drawn) or not math.isfinite(normaliser)
        tokens_by_row.append(drawn if draw is None or is_done else _by_numpy(draw, row))
    return Drawn(likeliest, normalisers, tokens_by_row)


def _by_kernels(
    library: NativeLibrary,
    logits: NDArray[np.float32],
    draws: Sequence[Draw | None],
    summary: Summary,
) -> tuple[NDArray[np.int64], NDArray[np.float64], list[list[int]]]:
    """Draws with the kernels, without the tokens of draws whose filters they do not have."""
    count, size = logits.shape
    theirs = [draw if draw and active_filters(draw.params) <= _NATIVE_FILTERS else None for draw in draws]
    scores = [draw and draw.scores for draw in theirs]
    rows = [None if row is None else np.ascontiguousarray(row, np.float32) for row in scores]
    assert all(row is None or row.size == size for row in rows)
    changed = np.array([0 if row is None else row.ctypes.data for row in rows], dtype=np.uint64)
    rules = np.array([_NO_RULE if draw is None else _rule(draw.params) for draw in theirs], dtype=_RULE)
    numbers = [_NONE if draw is None else draw.uniforms for draw in theirs]
    uniforms = np.concatenate([_NONE, *numbers])
    offsets = np.cumsum([0, *(part.size for part in numbers)])
    likeliest, normalisers = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.float64)
    tokens = np.empty(uniforms.size, dtype=np.int64)
    library.choose(logits, summary, changed, rules, uniforms, offsets, likeliest, normalisers, tokens)
    chosen, ends = tokens.tolist(), offsets.tolist()
    return likeliest, normalisers, [chosen[ends[i] : ends[i + 1]] for i in range(count)]


def _rule(params: DecodingParams) -> tuple[float, int, np.float32, float]:
    tail = np.float32(1.0 - params.top_p) if params.top_p < 1.0 else np.float32(-1.0)
    return params.temperature, min(params.top_k, _LARGEST_TOP_K), tail, params.min_p


def _by_numpy(draw: Draw, logits: NDArray[np.float32]) -> list[int] | Exception:
    try:
        left = sampling_candidates(logits if draw.scores is None else draw.scores, draw.params)
        drawn: list[int] = left.draw(draw.uniforms).tolist()
    except Exception as error:
        return error
    return drawn
