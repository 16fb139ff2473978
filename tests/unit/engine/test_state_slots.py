"""States of sequences: shared by forks, found again where prompts part, and never those of refused drafts."""

from __future__ import annotations

from typing import Any

import pytest
from shadow_model import cached, greedy_tokens, make_engine, request, run_all, settings

from mindbatch.engine.block_manager import StateSlots
from mindbatch.engine.engine import Engine
from mindbatch.engine.settings import affordable_blocks, affordable_states
from mindbatch.io.errors import CacheBudgetError, ConfigError

HEAD = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]  # two blocks of 4, and a half


def recurrent(**changes: Any) -> Engine:
    return make_engine(settings(**({"num_states": 8} | changes)))


def test_where_two_prompts_part_the_third_goes_on() -> None:
    """The first leaves its blocks, the second a state where it stops sharing them, the third finds both."""
    engine = recurrent()
    assert [cached(engine, str(last), [*HEAD, last, 7, last]) for last in range(4)] == [0, 0, 8, 8]
    assert cached(engine, "other", [9, *HEAD]) == 0


def test_a_state_is_found_for_as_long_as_nobody_needs_its_slot() -> None:
    engine = recurrent(num_states=1)
    assert [cached(engine, str(last), [*HEAD, last, 7]) for last in range(3)] == [0, 0, 0]
    engine = recurrent(num_states=2)
    assert [cached(engine, str(last), [*HEAD, last, 7]) for last in range(3)] == [0, 0, 8]
    for number in range(4):  # each has a state for itself
        cached(engine, f"other{number}", [number, number, 8])
    assert cached(engine, "again", [*HEAD, 11, 7]) == 8, "the oldest slot is not the one that was found"
    together = [request(f"both{number}", [number, 8, number], max_new_tokens=3) for number in range(2)]
    run_all(engine, together)
    assert cached(engine, "late", [*HEAD, 10, 7]) == 0


def test_whoever_goes_on_from_a_found_state_leaves_it_as_it_was() -> None:
    engine = recurrent()
    rows = [request(str(last), [*HEAD, last], max_new_tokens=9) for last in range(6)]
    results = run_all(engine, rows)
    for last, row in enumerate(rows):
        assert results[row.key].outputs[0].token_ids == greedy_tokens([*HEAD, last], 9)


def test_accepted_drafts_are_computed_once_more_and_refused_ones_leave_no_trace() -> None:
    prompt = [1, 2, 3, 4] * 4
    plain = run_all(recurrent(), [request("row", prompt, max_new_tokens=20)])["row"]
    for engine in (recurrent(), make_engine(settings())):
        drafted = run_all(engine, [request("row", prompt, max_new_tokens=20, prompt_lookup_num_tokens=4)])[
            "row"
        ]
        assert drafted.outputs[0].token_ids == plain.outputs[0].token_ids


def test_a_request_with_more_sequences_than_states_is_refused() -> None:
    engine = recurrent(num_states=2)
    with pytest.raises(
        CacheBudgetError, match="3 sequences that go on together have a state each and the ca"
    ):
        engine.add(request("row", HEAD, num_beams=3))
    engine.add(request("row", HEAD, num_beams=2))


def test_a_registered_state_is_kept_where_a_slot_is_free() -> None:
    slots = StateSlots(2)
    table: list[int] = []
    assert slots.prepare_write(table, 0, 4) == []
    slots.register(table[0], b"head")
    first = table[0]
    assert slots.prepare_write(table, 4, 5) == [(first, table[0])]
    assert slots.find([b"head"]) == [first]
    assert slots.prepare_write(table, 5, 6) == []
    slots.register(table[0], b"more")
    other: list[int] = []
    assert slots.prepare_write(other, 0, 1) == []  # takes the slot of the head
    assert slots.find([b"head"]) == []
    assert slots.prepare_write(table, 6, 7) == [], "in place: there is no slot left"
    assert slots.find([b"more"]) == []
    for held in (table, other):
        slots.free(held)
    assert slots.num_free == 2


def test_states_have_half_of_the_cache_at_most() -> None:
    assert affordable_states(1000, 0, 32) == 0
    assert affordable_states(1000, 10, 32) == 32
    assert affordable_states(1000, 100, 32) == 5
    assert affordable_states(1000, 100, 32, engines=2) == 2
    with pytest.raises(ConfigError, match=r"takes 501 bytes, .* the least is 1002"):
        affordable_states(1001, 501, 32)


@pytest.mark.parametrize(("engines", "least"), [(1, "two are"), (3, "4, one for each pipeline stage")])
def test_a_cache_of_less_than_a_block_is_refused(engines: int, least: str) -> None:
    with pytest.raises(ConfigError, match=f"a block of 4 tokens takes 40 bytes and {least}"):
        affordable_blocks(40 * engines, 10, 4, engines)
    assert affordable_blocks(40 * (engines + 1), 10, 4, engines) == 1
