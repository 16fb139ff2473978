"""Keeps the texts of control tokens in data from becoming control tokens.

`tokenizers` has a switch for this, but a Unigram or word-level vocabulary has its control tokens as ordinary
words. So the result is checked, and if needed a gap is put into each control text.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tokenizers import AddedToken, Encoding
from tokenizers import Tokenizer as Backend
from tokenizers.pre_tokenizers import PreTokenizer
from tokenizers.pre_tokenizers import Sequence as PreTokenizers

from mindbatch.io.errors import PromptError
from mindbatch.prompts.text_encoding import encoding_of

_PRIVATE_USE = (*range(0xF0000, 0xFFFFE), *range(0x100000, 0x10FFFE))


class Encoded(NamedTuple):
    """A text as token ids, one for each token of `encoding` that is not a gap.

    text: the encoded text, with `gap` inside control texts.
    """

    ids: list[int]
    encoding: Encoding
    text: str
    gap: str = ""

    def split(self, length: int) -> tuple[list[int], int]:
        """Returns the token ids up to the last one that covers text, and how many of them cover some of the
        last `length` characters, gaps not counted."""
        start = self._start_of(length)
        tokens = zip(self.encoding.offsets, self.encoding.tokens, strict=True)
        ends = [end for (_, end), token in tokens if not self.gap or token != self.gap]
        after = [index for index, end in enumerate(ends) if end > start]
        return self.ids[: after[-1] + 1] if after else self.ids, len(after)

    def _start_of(self, length: int) -> int:
        start = len(self.text)
        while length:
            start -= 1
            length -= self.text[start] != self.gap
        return start


class ControlText:
    """Finds the texts of a tokenizer's control tokens in data and breaks them so that they match nothing.

    Texts of one character cannot be broken and stay unchanged.

    pattern: matches each of the others.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = sorted({text for text in texts if len(text) > 1}, key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, self._texts)) or r"(?!)")
        self._first_characters = re.compile(f"(?={self.pattern.pattern})(.)", re.DOTALL)
        self._heads = {text[:i] for text in self._texts for i in range(1, len(text))}
        self._tails = {text[i:] for text in self._texts for i in range(1, len(text))}

    def endangers(self, value: Any) -> bool:
        """True if a string of a JSON value has a control text, or at its edge a part of one that a template's
        text could complete."""
        return any(
            self.pattern.search(text) or self._ends_with_head(text) or self._starts_with_tail(text)
            for text in strings_in(value)
        )

    def broken(self, value: Any, mark: str) -> Any:
        """Puts `mark` into each control text and at each endangered edge of the strings of a JSON value."""
        if isinstance(value, str):
            return self._broken_text(value, mark)
        if isinstance(value, Mapping):
            return {self._broken_key(key, mark): self.broken(item, mark) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.broken(item, mark) for item in value]
        return value

    def _broken_key(self, key: str, mark: str) -> str:
        return key if _is_name(key) else self._broken_text(key, mark)

    def _broken_text(self, text: str, mark: str) -> str:
        before = mark if self._starts_with_tail(text) else ""
        after = mark if self._ends_with_head(text) else ""
        return before + self._first_characters.sub(rf"\1{mark}", text) + after

    def _ends_with_head(self, text: str) -> bool:
        return any(text[-i:] in self._heads for i in range(1, self._edge(text) + 1))

    def _starts_with_tail(self, text: str) -> bool:
        return any(text[:i] in self._tails for i in range(1, self._edge(text) + 1))

    def _edge(self, text: str) -> int:
        return min(len(text), len(self._texts[0]) - 1) if self._texts else 0


def control_spans(encoding: Encoding, text: str, control: Mapping[int, str]) -> list[tuple[int, int, int]]:
    """Returns (start, end, token id) of the control tokens that the text spells out.

    An unknown-word token counts only if the text is its own.
    """
    tokens = zip(encoding.ids, encoding.offsets, strict=True)
    return [
        (*span, i) for i, span in tokens if i in control and text[slice(*span)].strip() == control[i].strip()
    ]


def absent_characters(texts: Iterable[str], count: int) -> list[str]:
    """Returns private-use characters that occur in none of the texts, as marks that no data can imitate.

    Each is one character, so that no template can split, upper-case or trim it.
    """
    used = set().union(*texts)
    free = (chr(code) for code in _PRIVATE_USE if chr(code) not in used)
    chosen = [mark for mark, _ in zip(free, range(count), strict=False)]
    if len(chosen) < count:
        raise PromptError("the text uses every private-use character of Unicode; at least two must be free")
    return chosen


def strings_in(value: Any) -> Iterable[str]:
    """Yields the strings of a JSON value that `ControlText.broken` may change: all values, and keys that are
    not identifiers, which templates would read by name."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if not _is_name(key):
                yield key
            yield from strings_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from strings_in(item)


def _is_name(key: Any) -> bool:
    return not isinstance(key, str) or key.isidentifier()


class PlainEncoder:
    """Encodes with a copy of the tokenizer that has two more tokens: `gap`, a separator that is dropped, and
    `slot`, which is replaced by a control token. Neither may occur in the texts."""

    def __init__(self, backend: Backend, gap: str, slot: str, words: PreTokenizer | None = None) -> None:
        self.gap, self.slot = gap, slot
        self._backend = _copied(backend, words)
        self._backend.encode_special_tokens = True
        self._backend.add_tokens([AddedToken(mark, normalized=False, special=False) for mark in (gap, slot)])
        self._gap_id, self._slot_id = (self._backend.token_to_id(mark) for mark in (gap, slot))

    def encode(self, text: str, *, add_special_tokens: bool, fill: Iterable[int] = ()) -> Encoded:
        """Encodes a text, drops its gaps and replaces its slots by the ids in `fill`, in order."""
        encoding = encoding_of(self._backend, text, add_special_tokens=add_special_tokens)
        filling = iter(fill)
        ids = [
            next(filling) if token_id == self._slot_id else token_id
            for token_id in encoding.ids
            if token_id != self._gap_id
        ]
        return Encoded(ids, encoding, text, self.gap)


def _copied(backend: Backend, words: PreTokenizer | None) -> Backend:
    """Copies a backend; `words`, a Python object that cannot be serialised, is shared."""
    if words is None:
        return Backend.from_str(backend.to_str())
    backend.pre_tokenizer = PreTokenizers([])
    try:
        copy = Backend.from_str(backend.to_str())
    finally:
        backend.pre_tokenizer = words
    copy.pre_tokenizer = words
    return copy
