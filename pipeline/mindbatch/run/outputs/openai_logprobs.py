"""Log-probabilities of generated tokens in OpenAI's two forms, of chat completions and of completions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from mindbatch.prompts.token_bytes import TokenBytes

UNLIKELY = -9999.0
"""Log-probability that OpenAI writes for a token that is as good as impossible; JSON has no infinity."""


class TokenName(NamedTuple):
    """Text that a token is called by, and its bytes.

    bytes: what it adds to a text; None where that is not known.
    is_part: it ends within a character, and the name shows its bytes like \\xe4\\xbb.
    """

    text: str
    bytes: bytes | None
    is_part: bool = False


class TokenNames:
    """The texts by which OpenAI's formats name tokens.

    token_bytes: what a token adds to a text; None where there is no tokenizer, then a token is named by its
        number, like token_id:17.
    """

    def __init__(self, token_bytes: TokenBytes | None) -> None:
        self._token_bytes = token_bytes

    def read(self, token_id: int, previous: int | None) -> TokenName:
        """The name of a token. `previous` is the token before it; None at the beginning of a generation."""
        # A generation follows its prompt, so even its first token stands inside a text, where a leading space
        # is kept. Which token comes before does not matter for that: the token itself serves.
        before = token_id if previous is None else previous
        token_bytes = None if self._token_bytes is None else self._token_bytes(token_id, before)
        if token_bytes is None:
            return TokenName(f"token_id:{token_id}", None)
        try:
            return TokenName(token_bytes.decode(), token_bytes)
        except UnicodeDecodeError:
            return TokenName("".join(f"\\x{byte:02x}" for byte in token_bytes), token_bytes, is_part=True)


class _Place(NamedTuple):
    """One generated token: the token before it, its own log-probability, and those of the likeliest tokens,
    which may include it."""

    token_id: int
    previous: int | None
    logprob: float
    likely: dict[int, float]


def chat_logprobs(generation: Mapping[str, Any], count: int, names: TokenNames) -> dict[str, Any] | None:
    """The `logprobs` of a chat choice, with the `count` likeliest tokens a place; None unless asked for."""
    if generation.get("logprobs") is None:
        return None
    return {
        "content": [
            _chat_token(place.token_id, place.previous, place.logprob, names)
            | {
                "top_logprobs": [
                    _chat_token(token_id, place.previous, logprob, names)
                    for token_id, logprob in islice(place.likely.items(), count)
                ]
            }
            for place in _places(generation)
        ],
        "refusal": None,
    }


def completion_logprobs(
    generation: Mapping[str, Any], prompt_length: int, names: TokenNames
) -> dict[str, Any] | None:
    """The `logprobs` of a completion's choice; None unless asked for.

    prompt_length: characters before the generation; text_offset counts from the prompt's beginning.
    """
    if generation.get("logprobs") is None:
        return None
    tokens, offsets, offset = [], [], prompt_length
    token_logprobs, top_logprobs = [], []
    for place in _places(generation):
        name = _completion_name(place.token_id, place.previous, names)
        tokens.append(name)
        offsets.append(offset)
        token_logprobs.append(place.logprob)
        top_logprobs.append(_completion_likely(place, names))
        offset += len(name)
    return {
        "tokens": tokens,
        "token_logprobs": token_logprobs,
        "top_logprobs": top_logprobs,
        "text_offset": offsets,
    }


def _places(generation: Mapping[str, Any]) -> Iterator[_Place]:
    previous = None
    for token_id, logprobs in zip(generation["token_ids"], generation["logprobs"], strict=True):
        # Numbers are texts as keys of JSON, in which form the ledger gives them back.
        likely = {int(key): max(logprob, UNLIKELY) for key, logprob in logprobs.items()}
        yield _Place(token_id, previous, likely[token_id], likely)
        previous = token_id


def _chat_token(token_id: int, previous: int | None, logprob: float, names: TokenNames) -> dict[str, Any]:
    name = names.read(token_id, previous)
    return {"token": name.text, "logprob": logprob, "bytes": name.bytes and list(name.bytes)}


def _completion_likely(place: _Place, names: TokenNames) -> dict[str, float]:
    """By name; of several tokens with one name the likeliest stands."""
    named: dict[str, float] = {}
    for token_id, logprob in place.likely.items():
        named.setdefault(_completion_name(token_id, place.previous, names), logprob)
    return named


def _completion_name(token_id: int, previous: int | None, names: TokenNames) -> str:
    """Completions have no list of bytes; half a character is marked in its name."""
    name = names.read(token_id, previous)
    return f"bytes:{name.text}" if name.is_part else name.text
