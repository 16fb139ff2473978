"""The tokens of an encoded text that reach into its continuation, by the characters that each stands for."""

from __future__ import annotations

from typing import NamedTuple

from tokenizers import Encoding


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
