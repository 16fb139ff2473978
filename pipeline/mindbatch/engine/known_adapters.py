"""The adapters that requests may name, and what each of them is to the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from mindbatch.config.lora_schema import unknown_adapter


class LiveAdapter(NamedTuple):
    """An adapter whose product is added to the base's. digest: of all of it that acts."""

    name: str
    digest: str


@dataclass(frozen=True)
class KnownAdapters:
    """What requests may name.

    live: by name; None stands for the model as it is loaded.
    default: what a request that names none is computed with; None is the model as it is loaded.
    """

    live: Mapping[str, LiveAdapter | None] = field(default_factory=dict)
    default: str | None = None

    def of(self, name: str | None) -> LiveAdapter | None:
        """The adapter of a name without `fault`; None is that of no adapter."""
        return None if name is None else self.live[name]

    def fault(self, name: str | None) -> str | None:
        """Why no request can have this name; None if it can."""
        return None if name is None or name in self.live else unknown_adapter(name, self.live)
