"""A prompt a line: exactly the bytes' lines, each within its bound."""

import io

from hypothesis import given
from hypothesis import strategies as st

from mindbatch.prompts.prompt_lines import Line, RawLine, raw_lines, text_lines


def lines(content: bytes, limit: int = 1000) -> list[Line]:
    return list(text_lines(io.BytesIO(content), limit))


def texts(content: bytes) -> list[str | None]:
    return [line.text for line in lines(content)]


def test_line_ends():
    assert texts(b"a\nb\r\nc") == ["a", "b", "c"]
    assert texts(b"a\n") == ["a"]
    assert texts(b"") == []
    assert texts(b"a\r\r\n") == ["a\r"]


def test_only_newline_bytes_split():
    text = "a\u2028b\u2029c\x0bd\x0ce\x85f\x1cg"
    assert texts(text.encode()) == [text]


def test_byte_order_mark_only_at_the_start():
    assert texts(b"\xef\xbb\xbfa\n\xef\xbb\xbfb") == ["a", "\ufeffb"]


def test_faults_have_line_numbers_and_the_others_go_on():
    assert lines(b"ok\n\xe4\xbd\n\n\r\nlast") == [
        Line(1, "ok"),
        Line(2, None, "not valid UTF-8: byte 0xe4 at position 0"),
        Line(3, None, "the line is empty"),
        Line(4, None, "the line is empty"),
        Line(5, "last"),
    ]


def test_long_lines_around_the_limit():
    content = b"12345\n12345\r\n123456\n123456\r\n1234567\n12345678901234567890\nok\n123456"
    assert [line.fault is None for line in lines(content, limit=5)] == [True] * 2 + [False] * 4 + [
        True,
        False,
    ]


def test_a_long_line_is_never_held_in_memory():
    class Watched(io.BytesIO):
        largest = 0

        def readline(self, size: int | None = -1, /) -> bytes:
            raw = super().readline(size)
            self.largest = max(self.largest, len(raw))
            return raw

    stream = Watched(b"x" * 50_000_000 + b"\nok\n")
    first, second = text_lines(stream, 1000)
    assert (first.text, first.fault) == (None, "the line is longer than 1000 bytes")
    assert second == Line(2, "ok")
    assert stream.largest <= 1 << 20


def test_raw_lines_keep_their_ends_and_show_what_they_drop():
    dropped: list[bytes] = []
    content = b"\xef\xbb\xbfa\r\n\n12345678\nb"
    assert list(raw_lines(io.BytesIO(content), 4, dropped.append)) == [
        RawLine(1, b"a\r\n", False),
        RawLine(2, b"\n", False),
        RawLine(3, b"123456", True),
        RawLine(4, b"b", False),
    ]
    assert dropped == [b"78\n"]


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\ufeff"), min_size=1))
)
def test_what_is_joined_is_read_back(given_lines: list[str]):
    assert texts("\n".join(given_lines).encode()) == given_lines
