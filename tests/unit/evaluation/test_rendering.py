"""No text becomes markup, and no value that a template names may be missing."""

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import UndefinedError
from markupsafe import Markup

from mindbatch.evaluation.rendering import environment, rendered, text


class Seen(HTMLParser):
    """What a reader of the markup sees."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


PARAGRAPH = '<p title="{{ value }}">{{ content }}</p>'


def paragraph(content: str, value: str) -> Seen:
    return Seen(environment().from_string(PARAGRAPH).render(content=content, value=value))


@given(st.text(), st.text())
def test_text_and_attributes_stay_what_they_are(content: str, value: str) -> None:
    seen = paragraph(content, value)
    assert seen.tags == ["p"]
    assert len(seen.attributes) == 1


@pytest.mark.parametrize("evil", ["</p><script>", "<img src=x onerror=alert(1)>", "&lt;b&gt;", "\"'><a>"])
def test_evil_text_is_shown_to_the_letter(evil: str) -> None:
    seen = paragraph(evil, evil)
    assert (seen.tags, seen.text, seen.attributes) == (["p"], evil, [("title", evil)])


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
