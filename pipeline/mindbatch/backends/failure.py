"""The exception of this package."""

from __future__ import annotations

from mindbatch.io.errors import MindBatchError


class BackendError(MindBatchError):
    """MindSpore or MindFormers lacks what it needs, or one of their processes failed."""
