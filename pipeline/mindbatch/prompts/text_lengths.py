"""Refuses texts far too long for a model before they are encoded, which takes some 300 bytes a character."""

from collections.abc import Callable, Mapping
from typing import Any

from mindbatch.io.errors import PromptError

_MOST_MERGED = 8
"""Characters that a normalizer makes one of at most: NFC makes one of 4, none is known that drops so many."""
_PART = 1 << 16
_LONG_TEXT = 4 * _PART
"""Characters of a text that is encoded at once; of a longer one the parts are counted before."""
_MOST_CHARACTERS = 32
"""For each token that may be there, characters that a long text may have, white space that some tokenizers
drop included: it takes time and memory, too."""
_MOST_ADDED_BY_A_CUT = 64


def refuse_longer(
    text: str, most_tokens: int | None, longest_entry: int, num_tokens: Callable[[str], int]
) -> None:
    """Refuses a text of far more than `most_tokens` tokens; None refuses none.

    longest_entry: characters of the longest token of the vocabulary. num_tokens: of a part of the text.

    Raises:
        PromptError: it is too long.
    """
    if most_tokens is None:
        return
    most = _MOST_MERGED * longest_entry * most_tokens
    is_longer = len(text) > most and _num_visible(text) > most
    if is_longer or len(text) > _most_characters(most_tokens):
        raise _too_long("text", len(text), most_tokens)
    if len(text) > _LONG_TEXT and _has_more(text, most_tokens, num_tokens):
        raise _too_long("text", len(text), most_tokens)


def refuse_longer_conversation(parts: Any, most_tokens: int | None) -> None:
    """Refuses the parts of a chat as `refuse_longer` does a text. parts: JSON values. Raises PromptError."""
    if most_tokens is not None and (count := _num_characters(parts)) > _most_characters(most_tokens):
        raise _too_long("conversation", count, most_tokens)


def _has_more(text: str, most_tokens: int, num_tokens: Callable[[str], int]) -> bool:
    """True if the parts of a long text have more tokens, by more than cuts between them may add."""
    count = 0
    for first in range(0, len(text), _PART):
        count += num_tokens(text[first : first + _PART]) - _MOST_ADDED_BY_A_CUT
        if count > most_tokens:
            return True
    return False


def _most_characters(most_tokens: int) -> int:
    """Characters of the longest text that is encoded, where it may have so many tokens."""
    return _LONG_TEXT + _MOST_CHARACTERS * most_tokens


def _too_long(what: str, count: int, most_tokens: int) -> PromptError:
    return PromptError(
        f"the {what} has {count} characters, far more than {most_tokens} tokens, the most that can be taken, "
        "output included"
    )


def _num_characters(value: Any) -> int:
    """Characters of a JSON value's texts, the keys of its objects included, and one for everything else."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(len(key) + _num_characters(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return sum(map(_num_characters, value))
    return 1


def _num_visible(text: str) -> int:
    """Counts characters but for white space, of which added tokens may swallow what is beside them."""
    # In parts: a list of all words would take many times the text's memory, and hold other threads up.
    parts = (text[first : first + _PART] for first in range(0, len(text), _PART))
    return sum(len("".join(part.split())) for part in parts)
