"""What kernels keep of the adapters that are loaded, a slot for each; slot 0 is the base without any."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from mindbatch.kernels.arrays import Array
from mindbatch.kernels.low_rank import AdaptedShape, AdapterParts

if TYPE_CHECKING:
    from mindspore import Parameter


class AdaptedParameter(NamedTuple):
    """What an adapted cell takes after the slots, and what it is made for."""

    stored: tuple[Parameter | Array, ...]
    shape: AdaptedShape


class AdapterStore(ABC):
    """Memory for some adapters at a time; the graphs read in the next step what was written before it."""

    parameters: Mapping[str, AdaptedParameter]

    @abstractmethod
    def write(self, slot: int, parts: AdapterParts) -> None:
        """Puts an adapter in a slot, from 1 on, in place of what was there."""
