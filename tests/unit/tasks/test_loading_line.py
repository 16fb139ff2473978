"""The line that says what is done before the first result."""

import io

import pytest

from mindbatch.io.moving_bar import CLEARED, LoadingLine


@pytest.mark.parametrize(("at_terminal", "shown"), [(True, True), (False, True), (True, False)])
def test_each_text_takes_the_place_of_the_last_and_nothing_stays(
    at_terminal: bool, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = io.StringIO()
    monkeypatch.setattr(file, "isatty", lambda: at_terminal, raising=False)
    with LoadingLine(shown=shown, file=file) as line:
        line("loading weights 50%")
        line("compiling graph for 8 tokens")
        for item in line.until_first(["a", "b"]):
            line(f"after {item}")
    parts = [CLEARED + "loading weights 50%", CLEARED + "compiling graph for 8 tokens", CLEARED]
    assert file.getvalue() == ("".join(parts) if at_terminal and shown else "")
