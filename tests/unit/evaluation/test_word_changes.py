"""The stretches that two texts share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindbatch.evaluation import rendering
from mindbatch.evaluation.rendering import stretches, words

TEXT = st.text(alphabet=st.sampled_from("ab  \n,今天.ß😀"), max_size=60) | st.text(max_size=40)


@given(TEXT)
def test_words_are_the_text(text: str) -> None:
    assert "".join(words(text)) == text


def test_words_keep_the_space_before_them() -> None:
    assert words("one, two\n今天 ") == ["one", ",", " two", "\n今", "天", " "]


@given(TEXT, TEXT)
def test_stretches_are_the_text_and_shared_ones_are_shared(text: str, reference: str) -> None:
    found = stretches(text, reference)
    assert "".join(stretch.text for stretch in found) == text
    place = 0
    for stretch in found:
        if stretch.shared:
            place = reference.index(stretch.text, place) + len(stretch.text)


def test_a_word_in_the_middle_differs() -> None:
    found = stretches("one two THREE four five six", "one two three four five six")
    assert [(stretch.text, stretch.shared) for stretch in found] == [
        ("one two", True),
        (" THREE", False),
        (" four five six", True),
    ]


def test_single_words_are_shared_by_chance() -> None:
    assert [stretch.shared for stretch in stretches("x the y", "a the b")] == [False]


def test_long_texts_share_their_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "MOST_WORDS", 4)
    found = stretches("one TWO three four five", "one two three four five")
    assert [stretch.text for stretch in found if stretch.shared] == ["one"]
