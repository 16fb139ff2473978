"""Which cache block belongs to which sequence: integers only, with shared blocks copied on write."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

Write = tuple[list[int], int, int]
"""A block table and the positions start .. stop - 1 that are to be written through it."""


class BlockManager:
    """Hands out block ids 0 .. num_blocks - 1 and counts who holds them.

    A block table lists a sequence's blocks in order of position. Forked tables share blocks; before a shared
    block is written, its writer gets a copy of its own.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = deque(range(num_blocks))
        self._holders = [0] * num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def holders(self, block: int) -> int:
        """Number of block tables that hold a block."""
        return self._holders[block]

    def blocks_needed(self, writes: Iterable[Write]) -> int:
        """Free blocks that `prepare_write` takes for all these writes, one after the other."""
        new, writers = 0, Counter[int]()
        for table, start, stop in writes:
            new += max(0, -(-stop // self.block_size) - len(table))
            writers.update(table[index] for index in self._shared(table, start, stop))
        # Each writer of a shared block takes a copy, but whoever holds it last writes in place.
        return new + sum(min(count, self._holders[block] - 1) for block, count in writers.items())

    def prepare_write(self, table: list[int], start: int, stop: int) -> list[tuple[int, int]]:
        """Makes positions start .. stop - 1 writable: copies shared blocks, then appends free ones.

        Returns the (source, destination) pairs whose contents must be copied before the step runs.
        The caller has made sure that `blocks_needed` blocks are free.
        """
        copies = []
        for index in self._shared(table, start, stop):
            block = self._take()
            copies.append((table[index], block))
            self._release(table[index])
            table[index] = block
        while len(table) * self.block_size < stop:
            table.append(self._take())
        return copies

    def fork(self, table: list[int]) -> list[int]:
        """A table that shares every block of another."""
        for block in table:
            self._holders[block] += 1
        return list(table)

    def free(self, table: list[int]) -> None:
        """Gives all blocks of a table back and empties it."""
        for block in reversed(table):
            self._release(block)
        table.clear()

    def _shared(self, table: list[int], start: int, stop: int) -> list[int]:
        """Places in the table, within the positions to be written, whose block somebody else holds too."""
        first, last = start // self.block_size, -(-stop // self.block_size)
        return [index for index in range(first, min(last, len(table))) if self._holders[table[index]] > 1]

    def _take(self) -> int:
        block = self._free.popleft()
        self._holders[block] = 1
        return block

    def _release(self, block: int) -> None:
        self._holders[block] -= 1
        if self._holders[block] == 0:
            self._free.append(block)
