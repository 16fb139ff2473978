"""Vocabulary: the tokens of a model as the grammar library sees them, by the bytes that each adds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import llguidance


class Vocabulary:
    """Token ids 0 to V - 1 and what each adds to the output, where it comes first and elsewhere.

    first, later: V byte strings each; an empty one is a token that no output may hold (control tokens, ids
        without a token). Where the two differ (sentencepiece drops a first word's space), the library gets
        one more entry for the first form, unless another token has those bytes anyway.
    """

    def __init__(self, first: Sequence[bytes], later: Sequence[bytes]) -> None:
        self.size = len(later)
        entries = list(later)
        self._silent = len(entries)  # what the library never allows: tokens that add nothing where they stand
        entries.append(b"")
        places = {b"": self._silent}
        for place, text in enumerate(later):
            places.setdefault(text, place)
        self._first_entry = np.arange(self.size)
        for token, text in enumerate(first):
            if text != later[token]:
                self._first_entry[token] = places.setdefault(text, len(entries))
                if places[text] == len(entries):
                    entries.append(text)
        self._has_text = np.fromiter(map(bool, later), dtype=np.bool_, count=self.size)
        self._end = len(entries)
        self.tokenizer = _library_tokenizer(entries)

    def shows_text(self, token_id: int) -> bool:
        """False for control tokens and ids that have no token."""
        return 0 <= token_id < self.size and bool(self._has_text[token_id])

    def entry(self, token_id: int, *, first: bool) -> int | None:
        """The library's id of a token that shows text; None if it adds nothing to an empty output."""
        entry = int(self._first_entry[token_id]) if first else token_id
        return None if entry == self._silent else entry

    def allowed(self, matcher: llguidance.LLMatcher, *, first: bool) -> NDArray[np.bool_]:
        """Mask [V] of the tokens that may follow, end tokens left out; none if the matcher has failed.

        A token that adds nothing to an empty output may come first if any other may come after it: the lone
        space of sentencepiece, which models write before a digit or before a space that is to be seen.
        """
        bits = np.zeros(self._end // 32 + 1, dtype=np.int32)
        matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        if matcher.is_error():
            return np.zeros(self.size, dtype=np.bool_)
        entries = np.unpackbits(bits.view(np.uint8), count=self._end, bitorder="little").view(np.bool_)
        tokens: NDArray[np.bool_] = entries[: self.size]
        if first:
            entries[self._silent] = tokens.any()
            tokens = entries[self._first_entry]
        return tokens


class _Entries:
    """A vocabulary in the form that llguidance takes."""

    bos_token_id = None

    def __init__(self, tokens: list[bytes]) -> None:
        self.tokens = tokens
        self.eos_token_id = len(tokens) - 1
        self.special_token_ids = [self.eos_token_id]

    def __call__(self, text: object) -> NoReturn:
        raise NotImplementedError("grammars are compiled without forcing, which alone needs this")


def _library_tokenizer(entries: list[bytes]) -> llguidance.LLTokenizer:
    import llguidance

    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Entries([*entries, b"<end>"])))
