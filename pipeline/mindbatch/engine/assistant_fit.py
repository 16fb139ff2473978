"""Whether a model can be another's assistant: they must speak the same tokens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mindbatch.errors import ConfigError

Vocabulary = Mapping[str, int]


def refuse_unfit(
    target: Path,
    assistant: Path,
    vocab_sizes: tuple[int, int],
    vocabularies: tuple[Vocabulary | None, Vocabulary | None],
) -> None:
    """Checks a model folder and its assistant's: sizes of the logits, and token texts with their ids.

    Raises:
        ConfigError: both folders, and what differs.
    """
    if vocab_sizes[0] != vocab_sizes[1]:
        raise ConfigError(
            f"model.assistant={assistant}: its vocabulary has {vocab_sizes[1]} tokens and that of "
            f"{target} has {vocab_sizes[0]}; an assistant must have the model's own vocabulary"
        )
    ours, theirs = vocabularies
    if ours is None or theirs is None or ours == theirs:
        return
    differing = sorted(
        (token for token, _ in ours.items() ^ theirs.items()), key=lambda token: _place(token, ours)
    )
    token = differing[0]
    count = len(set(differing))
    raise ConfigError(
        f"model.assistant={assistant}: its tokenizer differs from that of {target} in {count} tokens, "
        f"such as {token!r} ({_named(token, ours)} in the model, {_named(token, theirs)} in the assistant); "
        "an assistant must have the model's own vocabulary"
    )


def _place(token: str, vocabulary: Vocabulary) -> tuple[int, str]:
    return vocabulary.get(token, len(vocabulary)), token


def _named(token: str, vocabulary: Vocabulary) -> str:
    return f"id {vocabulary[token]}" if token in vocabulary else "unknown"
