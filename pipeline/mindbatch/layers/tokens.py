"""The tokens of a step as layers take them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mindbatch.kernels.operations.rotation import rotary_angles
from mindbatch.kernels.recording import Symbol
from mindbatch.models.architecture import Rotary


@dataclass(frozen=True)
class Tokens:
    """Arrays or symbols of T tokens; see `kernels.step.Batch`, and of encoder-decoders `PartArrays`."""

    ids: Any = None
    positions: Any = None
    slots: Any = None
    rows: Any = None
    block_tables: Any = None
    lengths: Any = None
    adapters: Any = None
    firsts: Any = None
    _angles: dict[Rotary, Any] = field(default_factory=dict)

    @property
    def places(self) -> tuple[Any, ...]:
        """Cache slots of the tokens and what they see, as attention takes it."""
        seen = (self.slots, self.rows, self.block_tables, self.lengths)
        return seen if self.firsts is None else (*seen, self.firsts, self.positions)

    def enter(self, layer: str) -> None:
        """Says, where it is recorded, in which layer is computed from here on."""
        if isinstance(self.ids, Symbol):
            self.ids.recording.layer = layer

    def angles(self, rotary: Rotary) -> Any:
        """cos and sin [T, rotary_dim / 2] of their positions, computed once for all layers."""
        if rotary not in self._angles:
            angles = rotary_angles(
                self.positions, inverse_frequencies=rotary.inverse_frequencies, scale=rotary.scale
            )
            self._angles[rotary] = angles
        return self._angles[rotary]
