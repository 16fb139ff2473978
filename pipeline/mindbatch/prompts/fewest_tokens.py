"""A lower bound of the tokens of a text, from its length: for texts far too long to be encoded."""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

from tokenizers import Encoding
from tokenizers import Tokenizer as Backend
from tokenizers.pre_tokenizers import ByteLevel


class Encoded(NamedTuple):
    """A text as token ids, one for each token of `encoding` that is no gap.

    text: as it was encoded, with `gap` inside it where control texts are broken up.
    """

    ids: list[int]
    encoding: Encoding
    text: str
    gap: str = ""

    def split(self, length: int) -> tuple[list[int], int]:
        """The token ids up to the last one that stands for some of the text, and how many of these stand for
        some of its last `length` characters, gaps not counted."""
        start = self._start_of(length)
        tokens = zip(self.encoding.offsets, self.encoding.tokens, strict=True)
        ends = [end for (_, end), token in tokens if not self.gap or token != self.gap]
        behind = [place for place, end in enumerate(ends) if end > start]
        return self.ids[: behind[-1] + 1] if behind else self.ids, len(behind)

    def _start_of(self, length: int) -> int:
        place = len(self.text)
        while length:
            place -= 1
            length -= self.text[place] != self.gap
        return place


_COMPOSED = 4
"""Characters that NFC or NFKC may make one of: no character decomposes into more (Unicode, annex 15)."""
_KEEPING_NORMALIZERS = {
    "ByteLevel": 1,
    "Lowercase": 1,
    "NFC": _COMPOSED,
    "NFD": 1,
    "NFKC": _COMPOSED,
    "NFKD": 1,
    "Prepend": 1,
}
_KEEPING_SPLITS = {"ByteLevel", "Metaspace", "Digits"}


_PART = 1 << 16


def characters_per_token(backend: Backend) -> int | None:
    """The most characters of a text, white space left out, that one token can stand for; None if unknown.

    It is known where every character of a text is in some token: each byte has one, and nothing is dropped
    before the vocabulary is asked. White space may be dropped: some added tokens swallow what is beside them.
    """
    settings = json.loads(backend.to_str())
    steps = [*_parts(settings["normalizer"], "normalizers")]
    splits = [*_parts(settings["pre_tokenizer"], "pretokenizers")]
    factors = [_merged(step) for step in steps]
    if settings["truncation"] or None in factors or not all(map(_keeps, splits)):
        return None
    if not _has_all_bytes(settings["model"], {part["type"] for part in (*steps, *splits)}):
        return None
    longest = max(map(len, backend.get_vocab(with_added_tokens=True)), default=1)
    return longest * math.prod(factor for factor in factors if factor)


def fewest_tokens(text: str, most_characters: int) -> int:
    """A lower bound of the number of tokens. most_characters: see `characters_per_token`."""
    # In parts: a list of all words would take many times the text's memory, and hold other threads up.
    parts = (text[first : first + _PART] for first in range(0, len(text), _PART))
    return -(-sum(len("".join(part.split())) for part in parts) // most_characters)


def _parts(setting: Any, name: str) -> list[dict[str, Any]]:
    if setting is None:
        return []
    if setting["type"] != "Sequence":
        return [setting]
    return [part for part_setting in setting[name] for part in _parts(part_setting, name)]


def _merged(normalizer: dict[str, Any]) -> int | None:
    """Returns the most characters that a normalizer may make one of; None if it may drop some."""
    if normalizer["type"] == "Replace":
        pattern = normalizer["pattern"].get("String")
        return 1 if pattern and len(normalizer["content"]) >= len(pattern) else None
    return _KEEPING_NORMALIZERS.get(normalizer["type"])


def _keeps(split: dict[str, Any]) -> bool:
    """True if the split drops nothing."""
    return split["type"] in _KEEPING_SPLITS or split.get("behavior", "Removed") != "Removed"


def _has_all_bytes(model: dict[str, Any], parts: set[str]) -> bool:
    """True if every byte has a token, so that none is unknown: unknown ones may be dropped or become one."""
    if model["type"] != "BPE":
        return False
    if "ByteLevel" in parts:
        return {*ByteLevel.alphabet()} <= {*model["vocab"]}
    return bool(model["byte_fallback"]) and {f"<0x{n:02X}>" for n in range(256)} <= {*model["vocab"]}
