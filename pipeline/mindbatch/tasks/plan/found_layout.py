"""Layout over ranks found by `mindbatch plan`, whoever shards the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FoundLayout:
    """json: for programs. page: for people."""

    json: dict[str, Any]
    page: str


FindLayout = Callable[[], FoundLayout]
"""Works a layout out whose settings have been checked, and writes its strategy files."""
