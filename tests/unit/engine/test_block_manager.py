"""Blocks are owned once unless shared, counted right, never lost, and found only for what they hold."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mindbatch.engine.block_manager import BlockManager

NUM_BLOCKS, BLOCK_SIZE = 12, 3


class Tables(RuleBasedStateMachine):
    """Tables grow, fork and end; `contents` is what each table must read at each position.

    `named` is every block content that was ever registered, by a digest that says what it is.
    """

    def __init__(self) -> None:
        super().__init__()
        self.manager = BlockManager(NUM_BLOCKS, BLOCK_SIZE)
        self.tables: list[list[int]] = []
        self.contents: list[list[int]] = []
        self.memory = [[-1] * BLOCK_SIZE for _ in range(NUM_BLOCKS)]
        self.stamp = 0
        self.named: dict[bytes, list[int]] = {}
        self.pasts: list[list[int]] = []

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
        self.tables.append(self.manager.share(self.tables[index]))
        self.contents.append(list(self.contents[index]))
        assert self.manager.num_free == free

    @precondition(lambda self: any(len(content) >= BLOCK_SIZE for content in self.contents))
    @rule(data=st.data())
    def register(self, data: st.DataObject) -> None:
        """Some leading full blocks of a table can be found from now on."""
        full = [index for index, content in enumerate(self.contents) if len(content) >= BLOCK_SIZE]
        index = data.draw(st.sampled_from(full))
        content, table = self.contents[index], self.tables[index]
        count = data.draw(st.integers(1, len(content) // BLOCK_SIZE))
        for block, digest in zip(table, digests_of(content), strict=False):
            if count == 0:
                break
            count -= 1
            self.manager.register(block, digest)
            self.named[digest] = list(self.memory[block])
        self.pasts.append(list(content))

    @precondition(lambda self: self.pasts)
    @rule(data=st.data())
    def begin_from_what_is_found(self, data: st.DataObject) -> None:
        past = data.draw(st.sampled_from(self.pasts))
        found = self.manager.find(digests_of(past))
        free, revived = self.manager.num_free, sum(self.manager.holders(block) == 0 for block in found)
        table = self.manager.share(found)
        assert free - self.manager.num_free == revived
        self.tables.append(table)
        self.contents.append(past[: len(table) * BLOCK_SIZE])

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
    def what_is_found_is_what_was_named(self) -> None:
        for digest, content in self.named.items():
            assert all(self.memory[block] == content for block in self.manager.find([digest]))

    @invariant()
    def every_table_reads_what_it_wrote(self) -> None:
        for table, content in zip(self.tables, self.contents, strict=True):
            assert len(table) == -(-len(content) // BLOCK_SIZE)
            read = [self.memory[table[p // BLOCK_SIZE]][p % BLOCK_SIZE] for p in range(len(content))]
            assert read == content


def digests_of(content: list[int]) -> list[bytes]:
    """A name for each full block: everything up to its end."""
    ends = range(BLOCK_SIZE, len(content) + 1, BLOCK_SIZE)
    return [repr(content[:end]).encode() for end in ends]


TestTables = Tables.TestCase
TestTables.settings = settings(stateful_step_count=40)


def filled(manager: BlockManager, *names: bytes) -> list[int]:
    """A table of full blocks, registered under these names."""
    table: list[int] = []
    manager.prepare_write(table, 0, len(names) * manager.block_size)
    for block, name in zip(table, names, strict=True):
        manager.register(block, name)
    return table


def known(manager: BlockManager, *names: bytes) -> list[bytes]:
    return [name for name in names if manager.find([name])]


def take(manager: BlockManager, blocks: int) -> list[int]:
    table: list[int] = []
    manager.prepare_write(table, 0, blocks * manager.block_size)
    return table


def test_the_longest_free_goes_first_and_tails_before_heads() -> None:
    manager = BlockManager(6, 4)
    old, new = filled(manager, b"a", b"ab", b"abc"), filled(manager, b"x", b"xy", b"xyz")
    manager.free(old)
    manager.free(new)
    left = []
    for _ in range(6):
        take(manager, 1)
        left.append(known(manager, b"a", b"ab", b"abc", b"x", b"xy", b"xyz"))
    assert left == [
        [b"a", b"ab", b"x", b"xy", b"xyz"],
        [b"a", b"x", b"xy", b"xyz"],
        [b"x", b"xy", b"xyz"],
        [b"x", b"xy"],
        [b"x"],
        [],
    ]


def test_a_block_that_gets_another_name_loses_the_first() -> None:
    manager = BlockManager(2, 4)
    table = filled(manager, b"a", b"ab")
    manager.register(table[1], b"xb")
    assert known(manager, b"a", b"ab", b"xb") == [b"a", b"xb"]
    manager.prepare_write(table, 4, 5)
    assert known(manager, b"a", b"ab", b"xb") == [b"a"]


def test_what_was_used_again_stays_longer() -> None:
    manager = BlockManager(4, 4)
    first, second = filled(manager, b"a", b"ab"), filled(manager, b"x", b"xy")
    manager.free(first)
    manager.free(second)
    again = manager.share(manager.find([b"a", b"ab"]))
    manager.free(again)
    take(manager, 2)
    assert known(manager, b"a", b"ab", b"x", b"xy") == [b"a", b"ab"]


def test_blocks_that_nobody_could_find_go_before_those_that_hold_something() -> None:
    manager = BlockManager(4, 4)
    named, nameless = filled(manager, b"a", b"ab"), take(manager, 2)
    manager.free(named)
    manager.free(nameless)
    take(manager, 2)
    assert known(manager, b"a", b"ab") == [b"a", b"ab"]


def test_the_chain_ends_at_the_first_unknown() -> None:
    manager = BlockManager(4, 4)
    table = filled(manager, b"a", b"ab", b"abc")
    assert manager.find([b"a", b"other", b"abc"]) == table[:1]
    assert manager.find([b"other", b"a"]) == []


def test_the_same_content_twice_is_registered_once() -> None:
    manager = BlockManager(4, 4)
    first, second = filled(manager, b"a"), filled(manager, b"a")
    assert manager.find([b"a"]) == first
    manager.free(second)
    take(manager, 3)
    assert manager.find([b"a"]) == first
