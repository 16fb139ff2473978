"""Tokenizer of a model folder as the program keeps it, however it was loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from mindbatch.io.errors import CheckpointError
from mindbatch.prompts.token_bytes import decoder_parts
from mindbatch.prompts.tokenizer_folder import SETTINGS


@dataclass(frozen=True, kw_only=True)
class LoadedTokenizer:
    """The tokenizer itself, and what its folder says about it."""

    backend: Backend
    bos_token_id: int | None
    eos_token_id: int | None
    unk_token_id: int | None
    named_tokens: dict[str, Any]
    """bos_token, eos_token... as text: the variables of a chat template."""
    templates: dict[str, str]
    """Chat templates by name; the usual one is "default"."""
    words: object | None = None
    """Object that divides texts before `backend` encodes them, for `PreTokenizer.custom` of `tokenizers`. Not
    in `backend`, which could not be copied then."""


def kept(
    backend: Backend,
    named: Mapping[str, Any],
    chat_template: object,
    folder: Path,
    words: object | None = None,
) -> LoadedTokenizer:
    """Wraps a tokenizer that has these tokens in its vocabulary, without truncation and padding.

    Raises:
        CheckpointError: chat_template is neither a template nor several by their names; a decoder that fails.
    """
    if any(part["type"] == "Strip" and part["stop"] for part in decoder_parts(backend)):
        # The library cuts both ends of a token without asking whether they meet, and panics.
        raise CheckpointError(f"{folder}: the tokenizer's decoder: Strip with stop above 0 is not supported")
    backend.no_truncation()
    backend.no_padding()
    # transformers looks for the id of an unknown token, too, among the unknown, without end.
    unknown = _id_of(named.get("unk_token"), backend, None)
    return LoadedTokenizer(
        backend=backend,
        bos_token_id=_id_of(named.get("bos_token"), backend, unknown),
        eos_token_id=_id_of(named.get("eos_token"), backend, unknown),
        unk_token_id=unknown,
        named_tokens=dict(named),
        templates=_templates(chat_template, folder),
        words=words,
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
