"""Blocks are owned once unless shared, found only for what they hold, and handed out in an order.

Under any load: test_scheduler.py; and test_prefix_cache.py, whose model notices a block of another prefix.
"""

from mindbatch.engine.block_manager import BlockManager


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


def test_a_shared_block_is_copied_before_it_is_written() -> None:
    """By all but the last who has it; what a step of several writers takes is foretold."""
    manager = BlockManager(5, 4)
    first = take(manager, 2)
    tables = [first, manager.share(first), manager.share(first)]
    assert [manager.holders(block) for block in first] == [3, 3]
    writes = [(table, 6, 7) for table in tables]
    assert manager.blocks_needed(writes) == 2
    shared = first[1]
    assert [manager.prepare_write(*write) for write in writes] == [[(shared, 2)], [(shared, 3)], []]
    assert [table[1] for table in tables] == [2, 3, shared]
    assert [manager.holders(block) for block in range(4)] == [3, 1, 1, 1]
    assert manager.blocks_needed([(first, 6, 9)]) == 1
    for table in tables:
        manager.free(table)
    assert (tables, manager.num_free) == ([[], [], []], 5)
