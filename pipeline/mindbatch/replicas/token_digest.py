"""A digest of the tokens that ranks would choose: ranks of one model that compute right have the same."""

from __future__ import annotations

import hashlib

import numpy as np

from mindbatch.engine.batch import FloatArray

COMPARED_STEPS = 16
"""Ranks compare their digests after so many steps."""


class TokenDigest:
    """Digest of the likeliest token of each row of logits since the last comparison."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, logits: FloatArray) -> None:
        """`logits`: [rows, vocabulary]."""
        self._hash.update(logits.argmax(-1).astype(np.int32).tobytes())

    def take(self) -> str:
        """The digest, which begins anew."""
        digest, self._hash = self._hash.hexdigest(), hashlib.sha256()
        return digest
