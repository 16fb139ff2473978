"""The table of docs/decoding.md is what is declared of the parameters."""

import decoding_table


def test_the_page_has_the_table() -> None:
    page = decoding_table.PAGE.read_text()
    assert decoding_table.with_table(page) == page, "run makers/decoding_table.py"
