"""Bounds the costs of a tokenizer.json: how much its parts make a text grow, and the sizes of its content.

These rules suffice for a file whose parts are of known kinds. A file with regular expressions that may be
slow, or in an uncommon form, is also tested in a limited process: see `tokenizer_probe`.
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

MAX_GROWTH = 64
"""Characters that one character may become; NFKC makes up to 18."""
_MAX_PARTS = 100
_MAX_TOKEN_CHARACTERS = 1000
_MAX_TOKEN_SQUARES = 1 << 27  # texts are searched for starts and ends of all control tokens
_MAX_ENTRY_CHARACTERS = 4096
_MAX_WORD_CHARACTERS = 500  # WordPiece takes time cubic in a word's length

PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_LISTS = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "post_processor": "processors",
    "decoder": "decoders",
}
_GROWING = {"BertNormalizer": 3, "ByteLevel": 4}


class UnknownForm(Exception):
    """Raised for a part that is not in the form that `tokenizers` writes."""


def content_of(data: bytes) -> dict[str, Any] | None:
    """Parses a tokenizer.json; returns None if it is damaged, for its loader to report."""
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
    """Disables the garbage collector, which would double the time to make hundreds of thousands of lists."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def cost_errors(content: dict[str, Any]) -> list[str]:
    """Lists the parts of a tokenizer.json that exceed a limit.

    Raises:
        UnknownForm: a part is not in the form that `tokenizers` writes.
    """
    errors = []
    for name in ("normalizer", "pre_tokenizer", "decoder"):
        errors += _too_many(name, len([*_parts(content.get(name), name)]), "part")
        if (grown := growth_of(content, name)) > MAX_GROWTH:
            errors.append(
                f"{name}: turns one character into up to {grown:,.0f}; at most {MAX_GROWTH} are allowed"
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
    """Returns the maximum of characters that a part makes of one character. Raises UnknownForm."""
    growth = _decoded_growth if name == "decoder" else _growth
    return prod(map(growth, _parts(content.get(name), name)))


def token_errors(texts: Iterable[Any]) -> list[str]:
    """Lists errors of tokens whose texts are too long to search for."""
    lengths = [len(text) for text in texts if isinstance(text, str)]
    if (longest := max(lengths, default=0)) > _MAX_TOKEN_CHARACTERS:
        return [f"a token of {longest} characters; at most {_MAX_TOKEN_CHARACTERS} are allowed"]
    if sum(length**2 for length in lengths) > _MAX_TOKEN_SQUARES:
        return [f"{counted(len(lengths), 'token')} with {sum(lengths):,} characters, too many to search for"]
    return []


def entry_errors(entries: Iterable[Any]) -> list[str]:
    """Lists errors of a vocabulary with an entry that is too long, since outputs consist of entries."""
    longest = max((len(entry) for entry in entries if isinstance(entry, str)), default=0)
    if longest <= _MAX_ENTRY_CHARACTERS:
        return []
    return [f"vocab: an entry of {longest} characters; at most {_MAX_ENTRY_CHARACTERS} are allowed"]


def longest_replacement(charsmap: bytes) -> int:
    """Returns the length of the longest replacement in a precompiled table, after its trie."""
    size = int.from_bytes(charsmap[:4], "little")
    return max(len(text.decode("utf-8", "replace")) for text in charsmap[4 + size :].split(b"\0"))


def regexes_to_try(content: dict[str, Any]) -> list[str]:
    """Returns the regular expressions that are not known to take linear time."""
    patterns = (_pattern(part).get("Regex") for name in PARTS for part in _parts(content.get(name), name))
    return [pattern for pattern in patterns if pattern is not None and not is_simple(pattern)]


def _parts(value: Any, name: str) -> Iterator[dict[str, Any]]:
    """Yields the parts of a sequence in order. Raises UnknownForm."""
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
    """Returns the pattern of a part as {"String": text} or {"Regex": text}, or {} if it has none."""
    if part["type"] not in ("Replace", "Split"):
        return {}
    match part.get("pattern"):
        case {"String": str(text), **others} if not others:
            return {"String": text}
        case {"Regex": str(text), **others} if not others:
            return {"Regex": text}
    raise UnknownForm


def _growth(part: dict[str, Any]) -> float:
    """Returns the maximum of characters that a normalizer or pre-tokenizer makes of one character."""
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
    """Returns the growth of a replacement; an empty match inserts the text between all characters."""
    shortest = len(pattern["String"]) if "String" in pattern else shortest_match(pattern["Regex"])
    return max(1.0, len(text) / shortest) if shortest else 1.0 + len(text)


def _decoded_table(table: str) -> bytes:
    try:
        return base64.b64decode(table)
    except ValueError:  # its reader refuses it
        return b""


def _too_many(name: str, count: int, noun: str, max_count: int = _MAX_PARTS) -> list[str]:
    return [f"{name}: {counted(count, noun)}; at most {max_count} are allowed"] if count > max_count else []


def _post_processor_errors(value: Any) -> list[str]:
    """Lists errors of templates that repeat the text or add too many tokens."""
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
        if isinstance(text := model.get(key), str) and len(text) > _MAX_PARTS:
            yield f"{key}: {counted(len(text), 'character')}; at most {_MAX_PARTS} are allowed"
    max_chars = model.get("max_input_chars_per_word", 0)
    if isinstance(max_chars, int) and max_chars > _MAX_WORD_CHARACTERS:
        yield f"max_input_chars_per_word={max_chars}; at most {_MAX_WORD_CHARACTERS} are allowed"
