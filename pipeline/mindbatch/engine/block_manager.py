"""Assignment of cache blocks, and of slots for states, to sequences: integers only, copied on write."""

from collections import OrderedDict
from collections.abc import Iterable

Write = tuple[list[int], int, int]
"""A block table and the positions start .. stop - 1 that are to be written through it."""
_WHOLE_SEQUENCE = 1 << 40


class BlockManager:
    """Allocates block ids first .. first + num_blocks - 1 and counts the tables that hold them.

    A block table lists a sequence's blocks in order of position. Tables may share blocks; before a shared
    block is written, its writer gets a copy of its own. A block can be registered under the digest of its
    contents; `find` returns it until it is written or allocated again. Unregistered free blocks are
    allocated first, then those that have been free for longest.
    """

    def __init__(self, num_blocks: int, block_size: int, first: int = 0) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        blocks = range(first, first + num_blocks)
        self._free = OrderedDict.fromkeys(blocks)
        self._holders = dict.fromkeys(blocks, 0)
        self._digests = dict[int, bytes | None].fromkeys(blocks)
        self._registered: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        """Number of blocks that no table holds, registered or not."""
        return len(self._free)

    def holders(self, block: int) -> int:
        """Returns the number of block tables that hold a block."""
        return self._holders[block]

    def blocks_needed(self, writes: Iterable[Write]) -> int:
        """Returns the number of free blocks that `prepare_write` allocates for all these writes, one after
        the other."""
        new, writers = 0, dict[int, int]()
        for table, start, stop in writes:
            new += max(0, -(-stop // self.block_size) - len(table))
            for index in self._table_range(table, start, stop):
                block = table[index]
                if self._holders[block] > 1:
                    writers[block] = writers.get(block, 0) + 1
        # Each writer of a shared block takes a copy, but the last holder writes to the block itself.
        return new + sum(min(count, self._holders[block] - 1) for block, count in writers.items())

    def prepare_write(self, table: list[int], start: int, stop: int) -> list[tuple[int, int]]:
        """Makes positions start .. stop - 1 writable: copies shared blocks, then appends free ones.

        Returns the (source, destination) pairs whose contents must be copied before the step runs.
        The caller has made sure that `blocks_needed` blocks are free.
        """
        copies = []
        for index in self._table_range(table, start, stop):
            block = table[index]
            if self._holders[block] > 1:
                table[index] = self._take()
                copies.append((block, table[index]))
                self._release(block)
            else:
                self._forget(block)
        while len(table) * self.block_size < stop:
            table.append(self._take())
        return copies

    def register(self, block: int, digest: bytes) -> None:
        """Registers the digest of the contents of a block; the first block of a digest stays registered.

        A block has one digest: under an older one it would be found after it was written again.
        """
        if self._registered.setdefault(digest, block) == block and self._digests[block] != digest:
            self._forget(block)
            self._digests[block] = digest

    def is_registered(self, block: int) -> bool:
        """True if `find` can return the block."""
        return self._digests[block] is not None

    def find(self, digests: Iterable[bytes]) -> list[int]:
        """Returns the registered blocks of the first digests, up to the first that is unknown."""
        blocks = []
        for digest in digests:
            block = self._registered.get(digest)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def share(self, blocks: Iterable[int]) -> list[int]:
        """Returns a table of these blocks, which other tables hold or `find` returned."""
        table = list(blocks)
        for block in table:
            if self._holders[block] == 0:
                del self._free[block]
            self._holders[block] += 1
        return table

    def free(self, table: list[int]) -> None:
        """Frees all blocks of a table and empties it; its tail is allocated before its head."""
        # A head is likelier to be found again, as the prefix of another request.
        for block in reversed(table):
            self._release(block)
        table.clear()

    def _table_range(self, table: list[int], start: int, stop: int) -> range:
        """Returns the indices in the table of the blocks with positions start .. stop - 1."""
        return range(start // self.block_size, min(-(-stop // self.block_size), len(table)))

    def _take(self) -> int:
        block, _ = self._free.popitem(last=False)
        self._holders[block] = 1
        self._forget(block)
        return block

    def _release(self, block: int) -> None:
        self._holders[block] -= 1
        if self._holders[block] == 0:
            self._free[block] = None
            # Nobody can find it, so it is used up before those that may save a prompt's computation.
            if self._digests[block] is None:
                self._free.move_to_end(block, last=False)

    def _forget(self, block: int) -> None:
        digest = self._digests[block]
        if digest is not None:
            del self._registered[digest]
            self._digests[block] = None


class StateSlots(BlockManager):
    """Allocates slots first .. first + num_states - 1 of recurrent states; a sequence has one.

    Forks share a slot until one of them continues. A registered state is found until its slot is allocated
    again: a sequence that has it continues with a copy.
    """

    def __init__(self, num_states: int, first: int = 0) -> None:
        super().__init__(num_states, _WHOLE_SEQUENCE, first)

    def prepare_write(self, table: list[int], start: int, stop: int) -> list[tuple[int, int]]:
        """Makes a sequence's state writable, as `BlockManager.prepare_write` does its blocks."""
        if not table or not self.is_registered(table[0]) or self.holders(table[0]) > 1 or not self.num_free:
            return super().prepare_write(table, start, stop)
        kept, table[0] = table[0], self._take()
        self._release(kept)
        return [(kept, table[0])]
