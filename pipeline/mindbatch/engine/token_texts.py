"""Owns the bytes that each token of a tokenizer adds to an output, for who looks at all tokens at once."""

from __future__ import annotations

from typing import NamedTuple

from mindbatch.errors import PromptError
from mindbatch.prompts.tokenizer import Tokenizer

_PROBES = 32


class TokenTexts(NamedTuple):
    """By token id, the bytes that it adds as an output's first token and elsewhere; empty for control tokens
    and ids without a token."""

    first: list[bytes]
    later: list[bytes]


def token_texts(tokenizer: Tokenizer, vocab_size: int) -> TokenTexts:
    """The texts of the token ids below `vocab_size`, the model's.

    Raises:
        PromptError: the tokenizer's tokens have no texts of their own: they change with the token before.
    """
    first = [_text(tokenizer, token, None) for token in range(vocab_size)]
    anchor = next((token for token, text in enumerate(first) if text), None)
    later = [_text(tokenizer, token, anchor) for token in range(vocab_size)]
    _check(tokenizer, later)
    return TokenTexts(first, later)


def _text(tokenizer: Tokenizer, token_id: int, previous: int | None) -> bytes:
    if token_id in tokenizer.special_ids:
        return b""
    return tokenizer.token_bytes(token_id, previous) or b""


def _check(tokenizer: Tokenizer, later: list[bytes]) -> None:
    """Tries some tokens after some others: word-end marks and repeats that count once show up at once."""
    shown = [token for token, text in enumerate(later) if text]
    probes = shown[:: max(1, len(shown) // _PROBES)]
    for previous in probes:
        for token in probes:
            if _text(tokenizer, token, previous) != later[token]:
                raise PromptError(
                    "decoding.regex and decoding.json_schema cannot be used with this model's tokenizer: "
                    f"what its token {token} adds to a text depends on the token before it"
                )
