"""The room that a token takes in the paged cache, for whoever plans memory without MindSpore."""

from __future__ import annotations

HEAD_ALIGNMENT = 16  # floats: a cached value head is padded to whole vectors of the widest instruction set


def padded_head(head_dim: int) -> int:
    """Floats of one value head in the native kernels' cache; the other kernels need no more than that."""
    return -(-head_dim // HEAD_ALIGNMENT) * HEAD_ALIGNMENT
