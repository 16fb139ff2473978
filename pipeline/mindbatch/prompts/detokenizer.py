"""Owns turning output tokens into text one at a time, never showing part of a character."""

import codecs
from collections.abc import Sequence

from mindbatch.prompts.tokenizer import Tokenizer

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class IncrementalDetokenizer:
    """The text of one output sequence, token by token; each costs the same however long the text is.

    The pieces joined read on from the prompt: after a prompt that ends in text, a sentencepiece model's first
    word keeps its leading space; after one that ends in a control token (only BOS, or a chat template's last
    token) the text begins without it, as in `tokenizer.decode(outputs)`. Bytes that can no longer become a
    character are shown as U+FFFD, one for each maximal invalid part (Unicode 15, section 3.9).
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], skip_special_tokens: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._hidden = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._previous = last_text_token(tokenizer, prompt_token_ids)
        self._utf8 = _Utf8Decoder(errors="replace")

    def push(self, token_id: int) -> str:
        """The characters that this token completes; empty while a character is in parts, for a hidden special
        token, and for an id that the tokenizer does not know."""
        if token_id in self._hidden:
            return ""
        added = self._tokenizer.token_bytes(token_id, self._previous)
        if added is None:
            return ""
        self._previous = token_id
        return self._utf8.decode(added)

    def flush(self) -> str:
        """Returns the rest at the end of the sequence: U+FFFD for a character never completed, or nothing."""
        return self._utf8.decode(b"", final=True)

    def fork(self) -> "IncrementalDetokenizer":
        """An independent copy that has shown the same text, for a sequence that continues in two ways."""
        copy = object.__new__(type(self))
        copy._tokenizer, copy._hidden, copy._previous = self._tokenizer, self._hidden, self._previous
        copy._utf8 = _Utf8Decoder(errors="replace")
        copy._utf8.setstate(self._utf8.getstate())
        return copy


def last_text_token(tokenizer: Tokenizer, token_ids: Sequence[int]) -> int | None:
    """The last token of the prompt if it shows text, else None: the output then begins a text of its own."""
    if not token_ids or token_ids[-1] in tokenizer.special_ids:
        return None
    known = tokenizer.token_bytes(token_ids[-1], None) is not None
    return token_ids[-1] if known else None
