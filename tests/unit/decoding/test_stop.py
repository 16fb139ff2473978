"""StopMatcher: the same text for any split into pushes, cut where the first stop string begins."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mindbatch.engine.output_text import StopMatcher

few_letters = st.text("ab", max_size=12)
stop_sets = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3)


def cut(text: str, stops: list[str]) -> str:
    return text[: min([text.find(stop) for stop in stops if stop in text], default=len(text))]


def run(pieces: list[str], stops: list[str]) -> tuple[str, bool]:
    matcher = StopMatcher(stops)
    text = "".join([*(matcher.push(piece) for piece in pieces), matcher.flush()])
    return text, matcher.stopped


@given(st.lists(few_letters, max_size=8), stop_sets)
@example(["ab", "c", "d"], ["abcd", "bc"])
@example(["abc", "x"], ["abcd", "bc"])
def test_any_split_gives_the_text_up_to_the_first_stop(pieces: list[str], stops: list[str]) -> None:
    text = "".join(pieces)
    assert run(pieces, stops) == (cut(text, stops), any(stop in text for stop in stops))


@given(st.lists(few_letters, max_size=8), stop_sets)
def test_nothing_is_held_that_cannot_begin_a_stop(pieces: list[str], stops: list[str]) -> None:
    """After each push, what is held back is a beginning of a stop string."""
    matcher = StopMatcher(stops)
    seen = given_out = ""
    for piece in pieces:
        seen += piece
        given_out += matcher.push(piece)
        held = seen[len(given_out) :]
        assert (
            matcher.stopped
            or not held
            or any(stop.startswith(held) for stop in stops)
            or cut(held, stops) != held
        )


@pytest.mark.parametrize("text", ["", "any text"])
def test_without_stops_text_passes_at_once(text: str) -> None:
    assert StopMatcher([]).push(text) == text
