"""Owns what bytes one token adds to a text, for any decoder of the `tokenizers` library."""

import json
import re
from collections.abc import Callable
from typing import Any

from tokenizers import Tokenizer as Backend

TokenBytes = Callable[[int, "int | None"], "bytes | None"]
"""(token id, id of the token before it or None at the start of a text) -> UTF-8 bytes, possibly part of a
character; None for an id that the tokenizer does not know."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_FIRST_NON_ASCII = 0x80


def token_bytes_of(backend: Backend) -> TokenBytes:
    """The function for this tokenizer's decoder. It costs the same for every token of a text."""
    kinds = {part["type"] for part in decoder_parts(backend)}
    if "ByteLevel" in kinds:
        return _ByteLevelTokens(backend)
    return _TextTokens(backend, has_byte_tokens="ByteFallback" in kinds)


class _ByteLevelTokens:
    """GPT-2's alphabet: every character of a token stands for one byte."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._byte_of = byte_level_alphabet()

    def __call__(self, token_id: int, previous: int | None) -> bytes | None:
        token: str | None = self._backend.id_to_token(token_id)
        if token is None:
            return None
        try:
            return bytes([self._byte_of[character] for character in token])
        except KeyError:  # an added token holding ordinary text, as the decoder treats it
            return token.encode()


class _TextTokens:
    """Tokens that are text (sentencepiece, WordPiece...); with byte fallback some are single bytes instead.

    The text of a token may depend on the one before it (a leading space is dropped at the start of a text),
    so it is what decoding the two adds to decoding the first alone.
    """

    def __init__(self, backend: Backend, *, has_byte_tokens: bool) -> None:
        self._backend = backend
        self._has_byte_tokens = has_byte_tokens
        self._any_text_token = self._find_text_token() if has_byte_tokens else None

    def __call__(self, token_id: int, previous: int | None) -> bytes | None:
        token: str | None = self._backend.id_to_token(token_id)
        if token is None:
            return None
        byte = self._non_ascii_byte(token)
        if byte is not None:
            return bytes([byte])
        left = self._left_of(previous)
        return self._decode([*left, token_id])[len(self._decode(left)) :].encode()

    def _left_of(self, previous: int | None) -> list[int]:
        if previous is None:
            return []
        # Half a character decodes to a replacement character that may vanish with what follows:
        # any whole token says as well that the text has begun.
        token = self._backend.id_to_token(previous)
        if token is None or self._non_ascii_byte(token) is not None:
            previous = self._any_text_token
        return [] if previous is None else [previous]

    def _non_ascii_byte(self, token: str) -> int | None:
        match = _BYTE_TOKEN.fullmatch(token) if self._has_byte_tokens else None
        byte = int(match[1], 16) if match else 0
        return byte if byte >= _FIRST_NON_ASCII else None

    def _find_text_token(self) -> int | None:
        special = self._backend.get_added_tokens_decoder()
        for token_id in range(self._backend.get_vocab_size()):
            token = self._backend.id_to_token(token_id)
            if (
                token
                and token_id not in special
                and not _BYTE_TOKEN.fullmatch(token)
                and self._decode([token_id])
            ):
                return token_id
        return None

    def _decode(self, token_ids: list[int]) -> str:
        text: str = self._backend.decode(token_ids, skip_special_tokens=False) if token_ids else ""
        return text


def byte_level_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level BPE (Radford et al. 2019): printable Latin-1 stands for itself, U+0100
    onwards for the other bytes in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(0x100)) - set(printable))
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def decoder_parts(backend: Backend) -> list[dict[str, Any]]:
    """The settings of a tokenizer's decoder and of those that it consists of."""
    decoder = backend.decoder
    pending: list[dict[str, Any]] = [] if decoder is None else [json.loads(decoder.__getstate__())]
    parts = []
    while pending:
        parts.append(pending.pop())
        pending.extend(parts[-1].get("decoders", []))
    return parts
