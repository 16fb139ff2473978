"""Building of HTML and SVG in which no text from data can become markup."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

VOID = frozenset({"meta", "br"})
_KEPT_CONTROLS = "\n\t"
_TURNING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that turn the direction of the text around them; the page would show it in another order."""


class Markup(str):
    """Markup that `element` made, or that was written in the program: never text from data."""

    __slots__ = ()


def element(
    tag: str, /, *children: Markup | str | Iterable[Markup | str] | None, **attributes: object
) -> Markup:
    """An element. Children that are no Markup are escaped, and so is every attribute's value.

    An attribute is named with _ for - and may end in _ (`class_`); None and False leave it out, True has no
    value. Names come from the program only.
    """
    opening = "".join(_attribute(key, value) for key, value in attributes.items())
    if tag in VOID:
        return Markup(f"<{tag}{opening}>")
    return Markup(f"<{tag}{opening}>{''.join(map(_content, children))}</{tag}>")


def joined(parts: Iterable[Markup | str]) -> Markup:
    """The parts one after the other, those that are no Markup escaped."""
    return Markup("".join(map(_content, parts)))


def text(content: str) -> Markup:
    """`content` escaped; characters that a page cannot show, or that reorder it, are written as escapes."""
    return Markup(escape("".join(map(_shown, content)), quote=True))


def _shown(char: str) -> str:
    code = ord(char)
    is_control = (code < 0x20 and char not in _KEPT_CONTROLS) or 0x7F <= code < 0xA0
    is_hidden = is_control or char in _TURNING or 0xD800 <= code <= 0xDFFF
    return ascii(char)[1:-1] if is_hidden else char


def _content(child: Markup | str | Iterable[Markup | str] | None) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    return text(child) if isinstance(child, str) else joined(child)


def _attribute(key: str, value: object) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{text(str(value))}"'
