"""Decodes tokens to bytes one by one, for any decoder of `tokenizers`, and detokenizes outputs."""

import codecs
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Tokenizer as Backend

from mindbatch.io.errors import CheckpointError
from mindbatch.prompts.tokenizer_folder import SETTINGS

TokenBytes = Callable[[int, "int | None"], "bytes | None"]
"""Maps (token id, id of the previous token or None at the start of a text) to UTF-8 bytes, possibly part of a
character, or to None for an unknown id."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_FIRST_NON_ASCII = 0x80
_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


def token_bytes_of(backend: Backend) -> TokenBytes:
    """Returns the function for this tokenizer's decoder, whose costs do not depend on the position."""
    kinds = {part["type"] for part in decoder_parts(backend)}
    if "ByteLevel" in kinds:
        return _ByteLevelTokens(backend)
    return _TextTokens(backend, has_byte_tokens="ByteFallback" in kinds)


class _ByteLevelTokens:
    """Tokens in GPT-2's alphabet, in which each character is one byte."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._byte_of = byte_level_alphabet()

    def __call__(self, token_id: int, previous: int | None) -> bytes | None:
        token: str | None = self._backend.id_to_token(token_id)
        if token is None:
            return None
        try:
            return bytes([self._byte_of[character] for character in token])
        except KeyError:  # an added token is ordinary text, as in the decoder
            return token.encode()


class _TextTokens:
    """Tokens that are text (SentencePiece, WordPiece...), or single bytes with byte fallback.

    The text of a token may depend on the previous one (a leading space is dropped at the start of a text), so
    it is computed as the text that decoding both adds to decoding the previous one.
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
        context = self._context(previous)
        return self._decode([*context, token_id])[len(self._decode(context)) :].encode()

    def _context(self, previous: int | None) -> list[int]:
        if previous is None:
            return []
        # Half a character decodes to a replacement character that may vanish with the next token; any
        # text token marks as well that this is not the start.
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
    """Returns the bytes by character of byte-level BPE (Radford et al. 2019): printable Latin-1 as itself,
    U+0100 onwards for the other bytes in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(0x100)) - set(printable))
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def decoder_parts(backend: Backend) -> list[dict[str, Any]]:
    decoder = backend.decoder
    pending: list[dict[str, Any]] = [] if decoder is None else [json.loads(decoder.__getstate__())]
    parts = []
    while pending:
        parts.append(pending.pop())
        pending.extend(parts[-1].get("decoders", []))
    return parts


@dataclass(frozen=True, kw_only=True)
class LoadedTokenizer:
    """A tokenizer as it is loaded from a folder, with its named tokens and chat templates."""

    backend: Backend
    bos_token_id: int | None
    eos_token_id: int | None
    unk_token_id: int | None
    named_tokens: dict[str, Any]
    """The texts of bos_token, eos_token..., which are variables of chat templates."""
    templates: dict[str, str]
    """Chat templates by name; "default" is used without tools."""
    words: object | None = None
    """An object for `PreTokenizer.custom` of `tokenizers` that divides texts before `backend` encodes them.

    It is not in `backend`, which could not be copied then.
    """
    warnings: tuple[str, ...] = ()


def kept(
    backend: Backend,
    named: Mapping[str, Any],
    chat_template: object,
    folder: Path,
    words: object | None = None,
) -> LoadedTokenizer:
    """Wraps a tokenizer without truncation, padding and dropout.

    named: the tokens bos_token, eos_token... of the vocabulary.

    Raises:
        CheckpointError: chat_template is neither a template nor templates by name, or the decoder would fail.
    """
    if any(part["type"] == "Strip" and part["stop"] for part in decoder_parts(backend)):
        # The library strips both ends of a token without checking that they do not overlap, and panics.
        raise CheckpointError(f"{folder}: the tokenizer's decoder: Strip with stop above 0 is not supported")
    dropout = getattr(backend.model, "dropout", None)
    if dropout:  # BPE dropout is for training: it skips merges at random
        backend.model.dropout = None
    backend.no_truncation()
    backend.no_padding()
    # If the unknown token itself is unknown, transformers recurses without end.
    unknown = _id_of(named.get("unk_token"), backend, None)
    return LoadedTokenizer(
        backend=backend,
        bos_token_id=_id_of(named.get("bos_token"), backend, unknown),
        eos_token_id=_id_of(named.get("eos_token"), backend, unknown),
        unk_token_id=unknown,
        named_tokens=dict(named),
        templates=_templates(chat_template, folder),
        words=words,
        warnings=(f"{folder}: the tokenizer's dropout={dropout:g} is for training; it is disabled",)
        if dropout
        else (),
    )


def _id_of(token: str | None, backend: Backend, unknown: int | None) -> int | None:
    token_id: int | None = None if token is None else backend.token_to_id(token)
    return unknown if token_id is None and token is not None else token_id


def _templates(setting: object, folder: Path) -> dict[str, str]:
    templates = {"default": setting} if isinstance(setting, str) else setting or {}
    if isinstance(templates, dict) and all(
        isinstance(item, str) for pair in templates.items() for item in pair
    ):
        return templates
    raise CheckpointError(
        f"{folder / SETTINGS}: chat_template must be a string or a list of mappings with name and template"
    )


class _Texts(Protocol):
    """The part of a `Tokenizer` that detokenization uses."""

    special_ids: frozenset[int]

    @property
    def token_bytes(self) -> TokenBytes: ...


class IncrementalDetokenizer:
    """Detokenizes one output sequence token by token, at constant costs.

    The text continues the prompt: after a prompt that ends in text, a SentencePiece model's first word keeps
    its leading space; after a prompt that ends in a control token (only BOS, or a chat template's last token)
    it does not, as in `tokenizer.decode(outputs)`. Bytes that can no longer become a character become U+FFFD,
    one for each maximal invalid part (Unicode 15, section 3.9).
    """

    def __init__(
        self, tokenizer: _Texts, prompt_token_ids: Sequence[int], skip_special_tokens: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._hidden = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._previous = last_text_token(tokenizer, prompt_token_ids)
        self._utf8 = _Utf8Decoder(errors="replace")

    def push(self, token_id: int) -> str:
        """Returns the characters that this token completes; none for part of a character, a hidden special
        token, or an unknown id."""
        if token_id in self._hidden:
            return ""
        added = self._tokenizer.token_bytes(token_id, self._previous)
        if added is None:
            return ""
        self._previous = token_id
        return self._utf8.decode(added)

    def flush(self) -> str:
        """Returns U+FFFD if the sequence ends within a character, else an empty text."""
        return self._utf8.decode(b"", final=True)

    def fork(self) -> "IncrementalDetokenizer":
        """Copies the state for a fork of the sequence."""
        copy = object.__new__(type(self))
        copy._tokenizer, copy._hidden, copy._previous = self._tokenizer, self._hidden, self._previous
        copy._utf8 = _Utf8Decoder(errors="replace")
        copy._utf8.setstate(self._utf8.getstate())
        return copy


def last_text_token(tokenizer: _Texts, token_ids: Sequence[int]) -> int | None:
    """Returns the prompt's last token if it is text, else None: the output then starts a new text."""
    if not token_ids or token_ids[-1] in tokenizer.special_ids:
        return None
    known = tokenizer.token_bytes(token_ids[-1], None) is not None
    return token_ids[-1] if known else None
