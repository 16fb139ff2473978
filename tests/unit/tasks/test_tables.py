"""Tables of pages: nothing in them acts on a terminal, and none is wider than it."""

import io
from collections.abc import Sequence

import pytest

from mindbatch.io.amounts import in_parts, table

NAMES = [f"column {number}" for number in range(10)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def table_of(names: Sequence[str]) -> list[str]:
    return table([["name", *names], ["[b]row[/b]", *("1" for _ in names)]], ruled=True)


@pytest.mark.parametrize("columns", ["40", "80", "1000"])
def test_on_a_terminal_there_are_as_many_tables_as_it_needs(
    columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", Terminal())
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("FORCE_COLOR", "1")
    page = in_parts(NAMES, table_of)
    assert "\x1b" not in page
    assert max(map(len, page.splitlines())) <= int(columns)
    heads = [line.split("  ")[1:] for line in page.splitlines() if line.startswith("name")]
    assert [name.strip() for head in heads for name in head if name.strip()] == NAMES
    assert len(heads) == {"40": 5, "80": 2, "1000": 1}[columns]
    assert page.count("[b]row[/b]") == len(heads)


def test_other_programs_get_one_table() -> None:
    assert len(in_parts(NAMES, table_of).splitlines()) == 3
