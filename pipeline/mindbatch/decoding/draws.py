"""Reduces a step's rows of logits: the likeliest tokens, log-probabilities, tokens drawn by sampling.

All rows at once by the C++ kernels, on all their threads, where they are built and have a row's filters; else
by NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.filters import active_filters, sampling_candidates
from mindbatch.decoding.params import DecodingParams
from mindbatch.decoding.softmax import Summary, kernels_library, likeliest_and_normalisers
from mindbatch.kernels.native_library import NativeLibrary

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

    likeliest: [S], the place of each row's largest logit, the lowest among equals.
    normalisers: [S], what to subtract from a row's logits to get log-probabilities (nats).
    tokens: those of each row's draw, or why there are none; of no use where logits are not finite.
    """

    likeliest: NDArray[np.int64]
    normalisers: NDArray[np.float64]
    tokens: list[list[int] | Exception]


def draw_tokens(logits: NDArray[np.float32], draws: Sequence[Draw | None], summary: Summary = None) -> Drawn:
    """Draws from `logits` [S, V] what is asked of each row, if anything; a row does not touch another.

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
        tokens_by_row.append(drawn if draw is None or is_done else _by_numpy(draw, row, normaliser))
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
    firsts = np.cumsum([0, *(part.size for part in numbers)])
    likeliest, normalisers = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.float64)
    tokens = np.empty(uniforms.size, dtype=np.int64)
    library.choose(logits, summary, changed, rules, uniforms, firsts, likeliest, normalisers, tokens)
    chosen, ends = tokens.tolist(), firsts.tolist()
    return likeliest, normalisers, [chosen[ends[i] : ends[i + 1]] for i in range(count)]


def _rule(params: DecodingParams) -> tuple[float, int, np.float32, float]:
    tail = np.float32(1.0 - params.top_p) if params.top_p < 1.0 else np.float32(-1.0)
    return params.temperature, min(params.top_k, _LARGEST_TOP_K), tail, params.min_p


def _by_numpy(draw: Draw, logits: NDArray[np.float32], normaliser: float) -> list[int] | Exception:
    changed = draw.scores
    try:
        if changed is None:
            left = sampling_candidates(logits, draw.params, normaliser=normaliser)
        else:
            left = sampling_candidates(changed, draw.params)
        drawn: list[int] = left.draw(draw.uniforms).tolist()
    except Exception as error:
        return error
    return drawn
