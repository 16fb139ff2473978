"""The sampling filters by their definitions: everything is sorted, in float64."""

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float32]
Mask = NDArray[np.bool_]


def probabilities(scores: Scores) -> NDArray[np.float64]:
    weights = np.exp(scores.astype(np.float64) - float(scores.max()))
    return weights / weights.sum()


def entropy(shares: NDArray[np.float64]) -> float:
    shares = shares[shares > 0]
    return -float((shares * np.log(shares)).sum())


def top_p(scores: Scores, share: float) -> Mask:
    order = np.argsort(scores, kind="stable")
    mask = np.empty(scores.size, dtype=np.bool_)
    mask[order] = np.cumsum(probabilities(scores)[order]).astype(np.float32) > np.float32(1 - share)
    mask[order[-1]] = True
    return mask


def typical_p(scores: Scores, share: float) -> Mask:
    shares = probabilities(scores)
    with np.errstate(divide="ignore"):
        strangeness = np.abs(-np.log(shares) - entropy(shares))
    order = np.argsort(strangeness, kind="stable")
    short = np.count_nonzero(np.cumsum(shares[order]) < share)
    mask: Mask = strangeness <= strangeness[order[min(short, scores.size - 1)]]
    return mask


def eta(scores: Scores, epsilon: float) -> Mask:
    shares = probabilities(scores)
    mask: Mask = shares >= min(epsilon, np.sqrt(epsilon) * np.exp(-entropy(shares)))
    mask[scores == scores.max()] = True
    return mask


def top_n_sigma(scores: Scores, n: float) -> Mask:
    possible = [float(score) for score in scores if score > -np.inf]
    mean = sum(possible) / len(possible)
    deviation = (sum((score - mean) ** 2 for score in possible) / len(possible)) ** 0.5
    least = max(possible) - n * deviation
    return np.array([score >= least for score in scores.tolist()])


def top_h(scores: Scores, share: float) -> Mask:
    order = np.argsort(-scores, kind="stable")[:100]
    shares = probabilities(scores[order])
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(shares > 0, -shares * np.log(shares), np.inf)
    kept = max(1, np.count_nonzero(np.cumsum(terms) <= share * entropy(shares)))
    mask = np.zeros(scores.size, dtype=np.bool_)
    mask[order[:kept]] = True
    return mask
