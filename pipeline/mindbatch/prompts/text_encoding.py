"""Encodes a text; one far too long for the model is refused before, as 300 bytes a character are needed."""

from collections.abc import Callable, Mapping
from typing import Any

from tokenizers import Encoding
from tokenizers import Tokenizer as Backend

from mindbatch.io.errors import PromptError
from mindbatch.prompts.tokenizer_folder import library_errors_as

CANNOT_ENCODE = "the tokenizer cannot encode it"

_MAX_MERGED = 8
"""Characters that a normalizer may merge to one; NFC merges up to 4."""
_PART = 1 << 16
_LONG_TEXT = 4 * _PART
"""Length up to which a text is encoded at once; the tokens of a longer one are counted in parts first."""
_MAX_CHARACTERS_PER_TOKEN = 32
"""Characters per allowed token that a long text may have, including white space, which some tokenizers drop
but which takes time and memory."""
_MAX_WITH_LOCK = 1 << 14
"""Length up to which a text is encoded without releasing the interpreter lock."""
_MAX_ADDED_BY_SPLIT = 64
"""Tokens that a split of the text may add."""


def encoding_of(backend: Backend, text: str, *, add_special_tokens: bool = False) -> Encoding:
    with library_errors_as(PromptError, CANNOT_ENCODE):
        if len(text) < _MAX_WITH_LOCK:
            return backend.encode(text, add_special_tokens=add_special_tokens)
        # Only encode_batch releases the interpreter lock.
        encoding: Encoding = backend.encode_batch([text], add_special_tokens=add_special_tokens)[0]
        return encoding


def refuse_longer(
    text: str, max_tokens: int | None, longest_entry: int, num_tokens: Callable[[str], int]
) -> None:
    """Refuses a text of far more than `max_tokens` tokens; None allows any length.

    Args:
        longest_entry: the length of the vocabulary's longest token in characters.
        num_tokens: returns the number of tokens in a part of the text.

    Raises:
        PromptError: the text is too long.
    """
    if max_tokens is None:
        return
    limit = _MAX_MERGED * longest_entry * max_tokens
    is_longer = len(text) > limit and _num_visible(text) > limit
    if is_longer or len(text) > _max_characters(max_tokens):
        raise _too_long("text", len(text), max_tokens)
    if len(text) > _LONG_TEXT and _has_more(text, max_tokens, num_tokens):
        raise _too_long("text", len(text), max_tokens)


def refuse_longer_conversation(parts: Any, max_tokens: int | None) -> None:
    """Refuses the parts of a chat, which are JSON values, if they are too long. Raises PromptError."""
    if max_tokens is not None and (count := _num_characters(parts)) > _max_characters(max_tokens):
        raise _too_long("conversation", count, max_tokens)


def _has_more(text: str, max_tokens: int, num_tokens: Callable[[str], int]) -> bool:
    """True if a long text has more tokens, even without those that splitting it may add."""
    count = 0
    for first in range(0, len(text), _PART):
        count += num_tokens(text[first : first + _PART]) - _MAX_ADDED_BY_SPLIT
        if count > max_tokens:
            return True
    return False


def _max_characters(max_tokens: int) -> int:
    """Returns the maximum length in characters of a text that may have so many tokens."""
    return _LONG_TEXT + _MAX_CHARACTERS_PER_TOKEN * max_tokens


def _too_long(noun: str, count: int, max_tokens: int) -> PromptError:
    return PromptError(
        f"the {noun} has {count} characters, far more than {max_tokens} tokens, the maximum of prompt "
        "and output"
    )


def _num_characters(value: Any) -> int:
    """Counts the characters of a JSON value's strings and keys, and one for any other value."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(len(key) + _num_characters(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return sum(map(_num_characters, value))
    return 1


def _num_visible(text: str) -> int:
    """Counts characters except white space, which added tokens may strip."""
    # In parts: a list of all words would take many times the text's memory, and block other threads.
    parts = (text[first : first + _PART] for first in range(0, len(text), _PART))
    return sum(len("".join(part.split())) for part in parts)
