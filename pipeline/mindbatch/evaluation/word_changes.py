"""Finds the stretches of a text that stand in another one, too: for showing two texts side by side."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher

FEWEST = 3
"""Words of a shared stretch that is worth showing, but at the beginning: single ones are shared by chance."""
MOST_WORDS = 2000
"""Most words compared, from the beginning of a text: the work grows with the square of its length."""

_EAST_ASIAN = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3"
_WORD = re.compile(rf"\s*(?:[{_EAST_ASIAN}]|[^\W{_EAST_ASIAN}]+|[^\w\s])|\s+")


@dataclass(frozen=True)
class Stretch:
    """A piece of a text; `shared`: the other text has it, too, in the same order."""

    text: str
    shared: bool


def words(text: str) -> list[str]:
    """The words with the space before them; together they are `text`. An East Asian letter is a word."""
    return _WORD.findall(text)


def stretches(text: str, reference: str) -> list[Stretch]:
    """`text` in pieces that `reference` shares and pieces that it does not."""
    own, other = words(text), words(reference)
    pieces: list[Stretch] = []
    at = 0
    for start, size in _shared(own, other):
        pieces += [Stretch("".join(own[at:start]), False), Stretch("".join(own[start : start + size]), True)]
        at = start + size
    pieces.append(Stretch("".join(own[at:]), False))
    return [stretch for stretch in pieces if stretch.text]


def _shared(own: list[str], other: list[str]) -> Iterator[tuple[int, int]]:
    """Start and length of each shared stretch of `own`."""
    beginning = _common_beginning(own, other)
    if beginning:
        yield 0, beginning
    if max(len(own), len(other)) > MOST_WORDS:
        return
    matcher = SequenceMatcher(None, own[beginning:], other[beginning:], autojunk=False)
    for block in matcher.get_matching_blocks():
        if block.size >= FEWEST:
            yield beginning + block.a, block.size


def _common_beginning(own: list[str], other: list[str]) -> int:
    count = 0
    for first, second in zip(own, other, strict=False):
        if first != second:
            break
        count += 1
    return count
