"""Bounds what a tokenizer.json may cost: how far its parts make a text grow, and the sizes of what it holds.

A file whose parts are of known kinds is judged by these rules alone. One with regular expressions that may
take long, or written in an uncommon form, is tried besides in a limited process: see `tokenizer_probe`.
"""

import base64
import gc
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import orjson

from mindbatch.io.amounts import counted
from mindbatch.prompts.expression_costs import is_simple, shortest_match

MOST_GROWTH = 64
"""Characters that one character may become. Unicode's own forms (NFKC) make 18 of one."""
_MOST_PARTS = 100
_MOST_TOKEN_CHARACTERS = 1000
_MOST_TOKEN_SQUARES = 1 << 27  # beginnings and ends of all control tokens are looked for in texts
_MOST_ENTRY_CHARACTERS = 4096
_MOST_WORD_CHARACTERS = 500  # WordPiece looks for each part of a word, in a time that grows with its cube

PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_LISTS = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "post_processor": "processors",
    "decoder": "decoders",
}
_GROWING = {"BertNormalizer": 3, "ByteLevel": 4}


class UnknownForm(Exception):
    """A part that is not written as `tokenizers` itself writes it."""


def content_of(data: bytes) -> dict[str, Any] | None:
    """The object in the bytes of a tokenizer.json; None for a damaged one: whoever loads it says how."""
    try:
        with _no_collection():
            content = orjson.loads(data)
    except ValueError:
        try:
            content = json.loads(data)
        except (ValueError, RecursionError):
            return None
    return content if isinstance(content, dict) else None


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keeps Python from looking for garbage among hundreds of thousands of new lists, which takes as long
    again as making them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def cost_errors(content: dict[str, Any]) -> list[str]:
    """Lists what the parts of a tokenizer.json and their sizes may not be.

    Raises:
        UnknownForm: a part is not written in the usual form.
    """
    errors = []
    for name in ("normalizer", "pre_tokenizer", "decoder"):
        errors += _too_many(name, len([*_parts(content.get(name), name)]), "part")
        if (grown := growth_of(content, name)) > MOST_GROWTH:
            errors.append(
                f"{name}: makes up to {grown:,.0f} characters of one; at most {MOST_GROWTH} are allowed"
            )
    added = content.get("added_tokens")
    tokens = [token.get("content") for token in added or () if isinstance(token, dict)]
    return [
        *errors,
        *_post_processor_errors(content.get("post_processor")),
        *(f"added_tokens: {error}" for error in token_errors(tokens)),
        *(f"model: {error}" for error in _model_errors(content.get("model"))),
    ]


def growth_of(content: dict[str, Any], name: str) -> float:
    """Characters that the normalizer, pre-tokenizer or decoder makes of one, at most. Raises UnknownForm."""
    growth = _decoded_growth if name == "decoder" else _growth
    return prod(map(growth, _parts(content.get(name), name)))


def token_errors(texts: Iterable[Any]) -> list[str]:
    """Lists why tokens, by their texts, take too long to be looked for."""
    lengths = [len(text) for text in texts if isinstance(text, str)]
    if (longest := max(lengths, default=0)) > _MOST_TOKEN_CHARACTERS:
        return [f"a token of {longest} characters; at most {_MOST_TOKEN_CHARACTERS} are allowed"]
    if sum(length**2 for length in lengths) > _MOST_TOKEN_SQUARES:
        return [f"{counted(len(lengths), 'token')} with {sum(lengths):,} characters, too many to look for"]
    return []


def entry_errors(entries: Iterable[Any]) -> list[str]:
    """Lists why a vocabulary cannot be used: an entry may be a large output."""
    longest = max((len(entry) for entry in entries if isinstance(entry, str)), default=0)
    if longest <= _MOST_ENTRY_CHARACTERS:
        return []
    return [f"vocab: an entry of {longest} characters; at most {_MOST_ENTRY_CHARACTERS} are allowed"]


def longest_replacement(charsmap: bytes) -> int:
    """Characters of the longest text in a precompiled table, behind its trie."""
    size = int.from_bytes(charsmap[:4], "little")
    return max(len(text.decode("utf-8", "replace")) for text in charsmap[4 + size :].split(b"\0"))


def regexes_to_try(content: dict[str, Any]) -> list[str]:
    """The regular expressions that are not surely matched in a time that follows from the text's length."""
    patterns = (_pattern(part).get("Regex") for name in PARTS for part in _parts(content.get(name), name))
    return [pattern for pattern in patterns if pattern is not None and not is_simple(pattern)]


def _parts(value: Any, name: str) -> Iterator[dict[str, Any]]:
    """The parts of a part, in their order. Raises UnknownForm."""
    pending = [value] if value is not None else []
    while pending:
        part = pending.pop(0)
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise UnknownForm
        if part["type"] != "Sequence":
            yield part
            continue
        if not isinstance(parts := part.get(_LISTS[name]), list):
            raise UnknownForm
        pending = [*parts, *pending]


def _pattern(part: dict[str, Any]) -> dict[str, str]:
    """The pattern of a part: String or Regex with its text; nothing where it has none."""
    if part["type"] not in ("Replace", "Split"):
        return {}
    match part.get("pattern"):
        case {"String": str(text), **others} if not others:
            return {"String": text}
        case {"Regex": str(text), **others} if not others:
            return {"Regex": text}
    raise UnknownForm


def _growth(part: dict[str, Any]) -> float:
    """Characters that a part of a normalizer or pre-tokenizer makes of one, at most."""
    match part:
        case {"type": "Replace", "content": str(text)}:
            return _replaced_growth(_pattern(part), text)
        case {"type": "Replace"}:
            raise UnknownForm
        case {"type": "Prepend", "prepend": str(text)}:
            return 1 if len(text) == 1 else 1 + len(text)
        case {"type": "Precompiled", "precompiled_charsmap": str(table)}:
            return max(1, longest_replacement(_decoded_table(table)))
    return _GROWING.get(part["type"], 1)


def _decoded_growth(part: dict[str, Any]) -> float:
    match part:
        case {"type": "Replace"}:
            return _growth(part)
        case {"type": "BPEDecoder", "suffix": ""} | {"type": "CTC", "word_delimiter_token": ""}:
            return 2  # a space before each character
    return 1


def _replaced_growth(pattern: dict[str, str], text: str) -> float:
    """One that matches where nothing is puts the text between all characters."""
    shortest = len(pattern["String"]) if "String" in pattern else shortest_match(pattern["Regex"])
    return max(1.0, len(text) / shortest) if shortest else 1.0 + len(text)


def _decoded_table(table: str) -> bytes:
    try:
        return base64.b64decode(table)
    except ValueError:  # whoever uses it refuses it
        return b""


def _too_many(name: str, count: int, noun: str, most: int = _MOST_PARTS) -> list[str]:
    return [f"{name}: {counted(count, noun)}; at most {most} are allowed"] if count > most else []


def _post_processor_errors(value: Any) -> list[str]:
    """Refuses a template that repeats the text, or puts much beside it."""
    parts = [*_parts(value, "post_processor")]
    errors = _too_many("post_processor", len(parts), "part")
    for template in (part for part in parts if part["type"] == "TemplateProcessing"):
        for name in ("single", "pair"):
            if not isinstance(pieces := template.get(name), list):
                raise UnknownForm
            errors += _too_many(f"post_processor: {name}", len(pieces), "part")
            repeats = sum(isinstance(piece, dict) and "Sequence" in piece for piece in pieces)
            errors += _too_many(f"post_processor: {name}", repeats, "text", 1 if name == "single" else 2)
        tokens = template.get("special_tokens")
        ids = [token.get("ids") for token in (tokens.values() if isinstance(tokens, dict) else tokens or ())]
        longest = max((len(several) for several in ids if isinstance(several, list)), default=0)
        errors += _too_many("post_processor: special_tokens", longest, "id")
    return errors


def _model_errors(model: Any) -> Iterator[str]:
    if not isinstance(model, dict):
        return
    vocab = model.get("vocab")
    entries = vocab if isinstance(vocab, dict) else [pair[0] for pair in vocab or () if pair]
    yield from entry_errors(entries)
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        if isinstance(text := model.get(key), str) and len(text) > _MOST_PARTS:
            yield f"{key}: {counted(len(text), 'character')}; at most {_MOST_PARTS} are allowed"
    most = model.get("max_input_chars_per_word", 0)
    if isinstance(most, int) and most > _MOST_WORD_CHARACTERS:
        yield f"max_input_chars_per_word={most}; at most {_MOST_WORD_CHARACTERS} are allowed"
