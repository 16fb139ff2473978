"""No text becomes markup; rankings, and the stretches that two texts share."""

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import UndefinedError
from markupsafe import Markup

from browser import Tags
from mindbatch.evaluation import rendering
from mindbatch.evaluation.rendering import (
    Ranked,
    Scale,
    environment,
    ranking,
    rendered,
    stretches,
    text,
    words,
)

PARAGRAPH = '<p title="{{ value }}">{{ content }}</p>'


def paragraph(content: str, value: str) -> Tags:
    return Tags(environment().from_string(PARAGRAPH).render(content=content, value=value))


@given(st.text(), st.text())
def test_text_and_attributes_stay_what_they_are(content: str, value: str) -> None:
    seen = paragraph(content, value)
    assert [(tag, [*attributes]) for tag, attributes in seen.tags] == [("p", ["title"])]


@pytest.mark.parametrize("evil", ["</p><script>", "<img src=x onerror=alert(1)>", "&lt;b&gt;", "\"'><a>"])
def test_evil_text_is_shown_to_the_letter(evil: str) -> None:
    seen = paragraph(evil, evil)
    assert (seen.tags, seen.text) == ([("p", {"title": evil})], evil)


def test_characters_that_hide_or_reorder_are_written_out() -> None:
    assert text("a\0b\x9b\u202ec\ud800") == "a\\x00b\\x9b\\u202ec\\ud800"
    assert text("line\n\tfamily 👨\u200d👩 مرحبا") == "line\n\tfamily 👨\u200d👩 مرحبا"
    text("\ud800").encode()


def test_only_markup_is_taken_as_markup() -> None:
    template = environment().from_string("{{ made }}{{ given }}{{ 1.5 }}")
    assert template.render(made=Markup("<b>"), given="<b>") == "<b>&lt;b&gt;1.5"


def test_a_value_that_is_missing_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        rendered("ranking.svg.j2", id="x")


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
    monkeypatch.setattr(rendering, "MAX_WORDS", 4)
    found = stretches("one TWO three four five", "one two three four five")
    assert [stretch.text for stretch in found if stretch.shared] == ["one"]


def written(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


SPEED = Scale("speed", "Speed", written, toward="faster")


def names(svg: str) -> list[str | None]:
    texts = ElementTree.fromstring(svg).iter("text")
    return [text.text for text in texts if text.attrib.get("class") == "name"]


def test_long_names_keep_what_tells_them_apart() -> None:
    """Their beginnings and ends are alike; where they are alone, a part of the middle is cut."""
    start, end = (
        "an_adapter_trained_for_a_long_time+sampled_t=",
        "_with_top_p=0.95_and_no_other_filter_at_all",
    )
    long = [f"{start}{value}{end}" for value in ("0.5", "0.75")]
    svg = ranking(SPEED, [Ranked(name, 1.0, (0.5, 2.0)) for name in long])
    hints = [each.text for each in ElementTree.fromstring(svg).iter("title")][1:]
    assert hints == [f"{name}: 1.0 (0.5 to 2.0)" for name in long]
    first, second = names(svg)
    assert first != second
    assert "sampled_t=0.5_" in str(first)
    assert "sampled_t=0.75_" in str(second)
    assert max(len(str(name)) for name in (first, second)) <= rendering.LONGEST_NAME
    [alone] = names(ranking(SPEED, [Ranked(long[0], 1.0)]))
    assert str(alone).startswith("an_adapter")
    assert str(alone).endswith("at_all")
    assert "…" in str(alone)


@given(st.lists(st.text("ab+", min_size=1, max_size=90), unique=True, min_size=1, max_size=4))
def test_short_names_are_short_and_differ(long: list[str]) -> None:
    short = rendering.short_names(long)
    assert max(map(len, short)) <= rendering.LONGEST_NAME
    assert all(
        name == cut for name, cut in zip(long, short, strict=True) if len(name) <= rendering.LONGEST_NAME
    )
