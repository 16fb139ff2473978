"""Messages of a step: what a leader sends to its followers, and what they answer."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from mindbatch.kernels.arrays import FloatArray
from mindbatch.kernels.step import StepInputs
from mindbatch.replicas.connection import Array

COMPUTE, PROJECT, COMPARE, DIGEST = "compute", "project", "compare", "digest"
"""From the leader: COMPUTE a step, PROJECT hidden states to logits, COMPARE; from a follower DIGEST."""


def step_parts(inputs: StepInputs) -> tuple[dict[str, Any], list[Array]]:
    """Fields and arrays of a step."""
    fields = {"graph": inputs.graph, "tokens": inputs.num_tokens, "with_logits": inputs.with_logits}
    if inputs.adapter_loads:
        fields["adapter_loads"] = inputs.adapter_loads
    if inputs.state_copies:
        fields["state_copies"] = inputs.state_copies
    copies = np.asarray(inputs.copies, np.int32).reshape(-1, 2)
    if inputs.wanted is None:
        return fields, [copies, *inputs.arrays]
    return {**fields, "some_wanted": True}, [copies, inputs.wanted, *inputs.arrays]


def step_of(fields: Mapping[str, Any], arrays: list[Array]) -> StepInputs:
    copies, *others = arrays
    # In memory of their own: those of a message begin at any byte, and MindSpore shares memory.
    rest = [np.array(array, np.int32) for array in others]
    wanted = rest.pop(0) if fields.get("some_wanted") else None
    return StepInputs(
        graph=fields["graph"],
        arrays=tuple(rest),
        copies=tuple((int(source), int(target)) for source, target in copies),
        num_tokens=fields["tokens"],
        with_logits=fields["with_logits"],
        adapter_loads=tuple((slot, name) for slot, name in fields.get("adapter_loads", ())),
        wanted=wanted,
        state_copies=tuple((source, target) for source, target in fields.get("state_copies", ())),
    )


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
