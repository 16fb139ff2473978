"""Every recorded command gives what it gave: pytest -m on_demand tests/recorded; see record.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from recorded.normalise import BY_NAME, FILES, normaliser
from recorded.record import EXPECTED, difference, prepared_checkout
from recorded.transcript import Checkout, Entry, read_entries, transcript_of

ENTRIES = read_entries()


def test_each_entry_is_recorded_and_nothing_else() -> None:
    names = [entry.name for entry in ENTRIES]
    assert len({*names}) == len(names)
    assert sorted(names) == sorted(file.stem for file in EXPECTED.iterdir())
    assert sum(len(entry.run) for entry in ENTRIES) >= 40
    assert {rule for entry in ENTRIES for rule in entry.rules} | {*FILES.values()} == {*BY_NAME}


def test_what_must_vary_is_left_out_and_nothing_else() -> None:
    normalise = normaliser({"/tmp/x": "<HERE>", "/tmp/x/home": "<HOME>"}, ("metrics",))
    first = '{"seconds":0.92,"rows_done":1}\n{"seconds":1.5,"rows_done":2,"rows_per_second":1e-05}\n'
    assert normalise(first) == '<SAMPLES>{"seconds":<SECONDS>,"rows_done":2,"rows_per_second":<SPEED>}\n'
    text = "/tmp/x/home/a: 3 rows run in 1.4 s; 8 prompt tokens, 6 generated (4 tokens/s)"
    assert normaliser({"/tmp/x": "<HERE>", "/tmp/x/home": "<HOME>"}, ())(text) == (
        "<HOME>/a: 3 rows run in <SECONDS> s; 8 prompt tokens, 6 generated (<SPEED> tokens/s)"
    )


@pytest.fixture(scope="module")
def checkout() -> Iterator[Checkout]:
    with prepared_checkout() as made:
        yield made


@pytest.mark.slow
@pytest.mark.on_demand
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_a_command_gives_what_was_recorded(entry: Entry, checkout: Checkout) -> None:
    changed = difference(entry, transcript_of(entry, checkout))
    assert not changed, f"\n{changed}"
