"""The exception of this package."""

from __future__ import annotations

from mindbatch.errors import MindBatchError


class BackendError(MindBatchError):
    """What MindSpore or MindFormers needs is missing, or one of their processes failed."""
