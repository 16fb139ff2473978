"""Parts of a page: templates, rankings, changed words; no text from data can become markup."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from html import escape
from os.path import commonprefix
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from markupsafe import Markup

from mindbatch.io.screen_text import ACTING

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"

LONGEST_NAME = 44


def rendered(template: str, **values: object) -> Markup:
    """Fills in a template. Values that are no Markup are escaped; one that is missing is an error."""
    return Markup(environment().get_template(template).render(values))


def page(template: str, **values: object) -> str:
    """Fills in the template of a whole page. Its policy lets a browser load and run nothing but its style."""
    style = "\n" + (TEMPLATES / "style.css").read_text(encoding="utf-8")
    return str(rendered(template, policy=content_policy(style), style=Markup(style), **values))


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

    return Environment(
        loader=FunctionLoader(source), autoescape=True, undefined=StrictUndefined, finalize=text
    )


def text(content: object) -> Markup:
    """`content` escaped; characters that a page cannot show, or that reorder it, are written as escapes."""
    if isinstance(content, Markup):
        return content
    harmless = ACTING.sub(lambda match: ascii(match[0])[1:-1], str(content))
    return Markup(escape(harmless, quote=True))


@dataclass(frozen=True)
class Scale:
    """The scale of a ranking. best: which end is the better one, and toward: what that end means."""

    identity: str
    title: str
    written: Callable[[float | None], str]
    best: Literal["low", "high"] = "high"
    toward: str = "better"


@dataclass(frozen=True)
class Ranked:
    """One column in a ranking. interval: between which its value may lie; leads: nobody is ahead of it."""

    name: str
    value: float | None
    interval: tuple[float, float] | None = None
    leads: bool = False

    @property
    def is_known(self) -> bool:
        return self.value is not None and math.isfinite(self.value)


def short_names(names: Sequence[str]) -> list[str]:
    """Shortens long names by what all of them begin and end with, and never by what differs."""
    start = len(commonprefix(names)) if len(names) > 1 else 0
    end = len(commonprefix([name[start:][::-1] for name in names])) if len(names) > 1 else 0
    return [_short(name, start, len(name) - end) for name in names]


def _short(name: str, start: int, end: int) -> str:
    """Cuts a long name to the part between two positions; a long part loses its middle."""
    if len(name) <= LONGEST_NAME:
        return name
    spare = max(0, LONGEST_NAME - 2 - (end - start))
    start, end = max(0, start - spare // 2), min(len(name), end + spare // 2)
    part = name[start:end]
    if len(part) > LONGEST_NAME:
        half = LONGEST_NAME // 2
        part = f"{part[:half]}…{part[1 - half :]}"
    return f"{'…' * (start > 0)}{part}{'…' * (end < len(name))}"


def ranking(scale: Scale, columns: Sequence[Ranked]) -> Markup:
    """Draws a point for each column with its interval, the best at the top and towards the right.

    A value that is None or not finite has no point, and stands below the others. What is written alike stands
    alike: no scale stretches a difference that the numbers do not show.
    """
    sign = -1.0 if scale.best == "low" else 1.0
    known = [column for column in columns if column.is_known]
    ordered = sorted(known, key=lambda column: -sign * (column.value or 0.0))
    ordered += [column for column in columns if not column.is_known]
    ends = [end for column in known for end in (column.value, *(column.interval or ())) if end is not None]
    low, high = min(ends, default=0.0), max(ends, default=0.0)
    differ = scale.written(low) != scale.written(high)

    def share(value: float) -> float:
        way = (value - low) / (high - low) if differ else 0.5
        return way if sign > 0 else 1 - way

    listed = ", ".join(f"{column.name} {scale.written(column.value)}" for column in ordered)
    labels = short_names([column.name for column in ordered])
    return rendered(
        "ranking.svg.j2",
        scale=scale,
        description=listed,
        columns=[*zip(ordered, labels, strict=True)],
        share=share,
    )


FEWEST = 3
"""Words of a shared stretch that is worth showing, but at the beginning: single ones are shared by chance."""
MAX_WORDS = 2000
"""Most words compared, from the beginning of a text: the work grows with the square of its length."""

_EAST_ASIAN = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3"
_WORD = re.compile(rf"\s*(?:[{_EAST_ASIAN}]|[^\W{_EAST_ASIAN}]+|[^\w\s])|\s+")


@dataclass(frozen=True)
class Stretch:
    """A part of a text; `shared`: the other text has it, too, in the same order."""

    text: str
    shared: bool


def words(text: str) -> list[str]:
    """Splits a text into words with the space before them. An East Asian letter is a word."""
    return _WORD.findall(text)


def stretches(text: str, reference: str) -> list[Stretch]:
    """Divides `text` into parts that `reference` shares and parts that it does not."""
    own, other = words(text), words(reference)
    parts: list[Stretch] = []
    at = 0
    for start, size in _shared(own, other):
        parts += [Stretch("".join(own[at:start]), False), Stretch("".join(own[start : start + size]), True)]
        at = start + size
    parts.append(Stretch("".join(own[at:]), False))
    return [stretch for stretch in parts if stretch.text]


def _shared(own: list[str], other: list[str]) -> Iterator[tuple[int, int]]:
    """Start and length of each shared stretch of `own`."""
    beginning = len(commonprefix([own, other]))
    yield 0, beginning
    if max(len(own), len(other)) > MAX_WORDS:
        return
    matcher = SequenceMatcher(None, own[beginning:], other[beginning:], autojunk=False)
    for block in matcher.get_matching_blocks():
        if block.size >= FEWEST:
            yield beginning + block.a, block.size
