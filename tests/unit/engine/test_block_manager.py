"""Blocks are owned once unless forked, counted right, and never lost."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mindbatch.engine.block_manager import BlockManager

NUM_BLOCKS, BLOCK_SIZE = 12, 3


class Tables(RuleBasedStateMachine):
    """Tables grow, fork and end; `contents` is what each table must read at each position."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = BlockManager(NUM_BLOCKS, BLOCK_SIZE)
        self.tables: list[list[int]] = []
        self.contents: list[list[int]] = []
        self.memory = [[-1] * BLOCK_SIZE for _ in range(NUM_BLOCKS)]
        self.stamp = 0

    @rule()
    def begin(self) -> None:
        self.tables.append([])
        self.contents.append([])

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), count=st.integers(1, 7))
    def write(self, data: st.DataObject, count: int) -> None:
        """Writes positions from any written one on, as decoding and recomputing do."""
        index = data.draw(st.integers(0, len(self.tables) - 1))
        table, content = self.tables[index], self.contents[index]
        start = data.draw(st.integers(0, len(content)))
        needed = self.manager.blocks_needed([(table, start, start + count)])
        if needed > self.manager.num_free:
            return
        free = self.manager.num_free
        copies = self.manager.prepare_write(table, start, start + count)
        assert free - self.manager.num_free == needed
        for source, destination in copies:
            self.memory[destination] = list(self.memory[source])
        content += [-1] * (start + count - len(content))
        for position in range(start, start + count):
            self.stamp += 1
            content[position] = self.stamp
            block = table[position // BLOCK_SIZE]
            assert self.manager.holders(block) == 1
            self.memory[block][position % BLOCK_SIZE] = self.stamp

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def write_together(self, data: st.DataObject) -> None:
        """Several tables get one more position in one step; together they take just what was foretold."""
        chosen = data.draw(st.sets(st.integers(0, len(self.tables) - 1), min_size=1))
        writes = [(self.tables[i], len(self.contents[i]), len(self.contents[i]) + 1) for i in sorted(chosen)]
        needed = self.manager.blocks_needed(writes)
        if needed > self.manager.num_free:
            return
        free = self.manager.num_free
        copies = [pair for write in writes for pair in self.manager.prepare_write(*write)]
        assert free - self.manager.num_free == needed
        for source, destination in copies:
            self.memory[destination] = list(self.memory[source])
        for index in sorted(chosen):
            self.stamp += 1
            position = len(self.contents[index])
            self.contents[index].append(self.stamp)
            self.memory[self.tables[index][position // BLOCK_SIZE]][position % BLOCK_SIZE] = self.stamp

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.tables) - 1))
        free = self.manager.num_free
        self.tables.append(self.manager.fork(self.tables[index]))
        self.contents.append(list(self.contents[index]))
        assert self.manager.num_free == free

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.tables) - 1))
        table = self.tables.pop(index)
        self.contents.pop(index)
        self.manager.free(table)
        assert table == []

    @invariant()
    def holders_are_the_tables_that_name_a_block(self) -> None:
        held = Counter(block for table in self.tables for block in table)
        assert [self.manager.holders(block) for block in range(NUM_BLOCKS)] == [
            held[block] for block in range(NUM_BLOCKS)
        ]
        assert self.manager.num_free == NUM_BLOCKS - len(held)

    @invariant()
    def every_table_reads_what_it_wrote(self) -> None:
        for table, content in zip(self.tables, self.contents, strict=True):
            assert len(table) == -(-len(content) // BLOCK_SIZE)
            read = [self.memory[table[p // BLOCK_SIZE]][p % BLOCK_SIZE] for p in range(len(content))]
            assert read == content


TestTables = Tables.TestCase
TestTables.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_only_shared_blocks_that_are_written_are_copied() -> None:
    manager = BlockManager(8, 4)
    table: list[int] = []
    manager.prepare_write(table, 0, 10)
    child = manager.fork(table)
    before = list(child)
    assert manager.prepare_write(child, 10, 11) == [(before[2], child[2])]
    assert child[:2] == table[:2]
    assert child[2] != table[2]
    assert manager.prepare_write(table, 10, 11) == []


def test_the_last_holder_writes_in_place() -> None:
    """Three samples of a prompt whose last block is part full: two copies, not three."""
    manager = BlockManager(3, 4)
    first: list[int] = []
    manager.prepare_write(first, 0, 2)
    tables = [first, manager.fork(first), manager.fork(first)]
    assert manager.blocks_needed([(table, 2, 3) for table in tables]) == 2
    assert sum(len(manager.prepare_write(table, 2, 3)) for table in tables) == 2
    assert manager.num_free == 0


@pytest.mark.parametrize(("start", "stop", "needed"), [(0, 1, 1), (0, 4, 1), (0, 5, 2), (3, 9, 3)])
def test_needs_of_an_empty_table(start: int, stop: int, needed: int) -> None:
    assert BlockManager(8, 4).blocks_needed([([], start, stop)]) == needed
