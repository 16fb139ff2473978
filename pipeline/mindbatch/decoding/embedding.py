"""Embeddings: a prompt's last hidden states pooled to one vector of length 1, in place of text."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.row import NotFiniteError
from mindbatch.decoding.softmax import Summary
from mindbatch.decoding.strategy import Decision, DecodingStrategy, GroupView, Hypothesis, guarded
from mindbatch.io.errors import PromptError


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
    if group.rows[0].params.pooling == "last":
        pooled = hidden[-1].astype(np.float64)
    else:
        pooled = hidden.mean(axis=0, dtype=np.float64)
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
