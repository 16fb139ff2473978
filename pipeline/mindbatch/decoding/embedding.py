"""Embeddings: a prompt's last hidden states pooled to one vector of length 1, instead of text."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.row import NotFiniteError
from mindbatch.decoding.softmax import Summary
from mindbatch.decoding.strategy import Decision, DecodingStrategy, GroupView, Hypothesis, guarded
from mindbatch.io.errors import PromptError


def _weighted_mean(hidden_TH: NDArray[np.float32]) -> NDArray[np.float64]:
    """Returns the mean with weights 1, 2, 3 ... (Muennighoff, 2022)."""
    weights_T1 = np.arange(1, len(hidden_TH) + 1, dtype=np.float64)[:, None]
    weighted: NDArray[np.float64] = (hidden_TH * weights_T1).sum(axis=0) / weights_T1.sum()
    return weighted


_POOLED: Mapping[str, Callable[[NDArray[np.float32]], NDArray[np.float64]]] = {
    "last": lambda hidden_TH: hidden_TH[-1].astype(np.float64),
    "mean": lambda hidden_TH: hidden_TH.mean(axis=0, dtype=np.float64),
    "cls": lambda hidden_TH: hidden_TH[0].astype(np.float64),
    "max": lambda hidden_TH: hidden_TH.max(axis=0).astype(np.float64),
    "weightedmean": _weighted_mean,
}


class Embedding(DecodingStrategy):
    """Ends each request after its prompt. The hidden states are those that logits are made of: after the
    model's last norm."""

    needs_hidden = True

    def advance(
        self, groups: Sequence[GroupView], logits: NDArray[np.float32], summary: Summary = None
    ) -> list[Decision]:
        return [guarded(group, _decision, group) for group in groups]


def _decision(group: GroupView) -> Decision:
    hidden = group.prompt_hidden
    assert hidden is not None
    pooled = _POOLED[group.rows[0].params.pooling or "last"](hidden)
    if not np.isfinite(pooled).all():
        raise NotFiniteError("the model's hidden states are no numbers (NaN or infinite)")
    if (count := group.rows[0].params.dimensions) is not None:
        if count > len(pooled):
            raise PromptError(
                f"{group.rows[0].key}: decoding.dimensions={count}: the model's embeddings have "
                f"{len(pooled)}; allowed: 1 to {len(pooled)}"
            )
        pooled = pooled[:count]
    vector = (pooled / max(np.linalg.norm(pooled), np.finfo(np.float64).tiny)).astype(np.float32)
    return Decision([], results=[Hypothesis((), "stop", 0.0, None, embedding=tuple(vector.tolist()))])
