"""Pages and drawings from the templates of this package, in which no text from data can become markup."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"

_KEPT_CONTROLS = "\n\t"
_TURNING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that turn the direction of the text around them; the page would show it in another order."""


def rendered(template: str, **values: object) -> Markup:
    """A template filled in. Values that are no Markup are escaped; one that is missing is an error."""
    return Markup(environment().get_template(template).render(values))


def content_policy(style: str) -> str:
    """Builds the policy that lets a browser load and run nothing on a page but this style sheet."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


@cache
def environment() -> Environment:
    """Templates without their line breaks and indentation, which are for their readers only."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined  # only these pages pay for the import

    def source(name: str) -> str:
        return re.sub(r"\n\s*", "", (TEMPLATES / name).read_text(encoding="utf-8"))

    found = Environment(
        loader=FunctionLoader(source), autoescape=True, undefined=StrictUndefined, finalize=text
    )
    found.filters["at"] = lambda place: f"{place:.1f}"
    return found


def text(content: object) -> Markup:
    """`content` escaped; characters that a page cannot show, or that reorder it, are written as escapes."""
    if isinstance(content, Markup):
        return content
    return Markup(escape("".join(map(_shown, str(content))), quote=True))


def _shown(char: str) -> str:
    code = ord(char)
    is_control = (code < 0x20 and char not in _KEPT_CONTROLS) or 0x7F <= code < 0xA0
    is_hidden = is_control or char in _TURNING or 0xD800 <= code <= 0xDFFF
    return ascii(char)[1:-1] if is_hidden else char
