"""Assignment of slots for recurrent states to sequences: integers only."""

from __future__ import annotations

from mindbatch.engine.block_manager import BlockManager

_WHOLE_SEQUENCE = 1 << 40


class StateSlots(BlockManager):
    """Slots 0 .. num_states - 1, of which a sequence has one, as it has one block of all its positions.

    Forks share a slot until one of them goes on. A state that was registered can be found for as long as
    nobody needs its slot: whoever has it goes on with a copy.
    """

    def __init__(self, num_states: int) -> None:
        super().__init__(num_states, _WHOLE_SEQUENCE)

    def prepare_write(self, table: list[int], start: int, stop: int) -> list[tuple[int, int]]:
        """Makes a sequence's state writable; see `BlockManager.prepare_write`."""
        if not table or not self.is_registered(table[0]) or self.holders(table[0]) > 1 or not self.num_free:
            return super().prepare_write(table, start, stop)
        kept, table[0] = table[0], self._take()
        self._release(kept)
        return [(kept, table[0])]
