"""Tokens that the user rules out: by name, as part of a word, or because they would repeat an n-gram."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.row import DecodingStep, NoTokenLeftError, Processor, Row, token_array
from mindbatch.io.errors import PromptError


def allowed_by_callable(row: Row) -> Processor:
    """prefix_allowed_tokens_fn, called with the row's key and the tokens of prompt and output."""
    ask = row.params.prefix_allowed_tokens_fn
    assert ask is not None

    def process(step: DecodingStep) -> None:
        key, tokens = step.row.key, [*step.row.prompt_token_ids, *step.row.output_token_ids]
        try:
            allowed = _mask(ask(key, tokens), step.scores.size)
        except Exception as error:  # the user's code may raise anything
            raise PromptError(f"{key}: decoding.prefix_allowed_tokens_fn: {error!r}") from error
        step.allow_only(allowed, "prefix_allowed_tokens_fn")

    return process


def obey_constraint(step: DecodingStep) -> None:
    """The row's regular expression or schema has the last word: nothing forces a token against it."""
    constraint = step.row.constraint
    if constraint is not None and constraint.error is not None:
        raise NoTokenLeftError(f"{step.row.key}: {constraint.error}")
    allowed = step.allowed
    if allowed is not None:
        step.allow_only(allowed, "json_schema" if step.row.params.json_schema is not None else "regex")


def _mask(allowed: Iterable[int], vocabulary_size: int) -> NDArray[np.bool_]:
    """Mask [V] of the given token ids."""
    mask = np.zeros(vocabulary_size, dtype=np.bool_)
    token_ids = allowed if isinstance(allowed, np.ndarray) else np.array(list(allowed))
    if token_ids.size:
        if token_ids.ndim != 1 or token_ids.dtype.kind not in "iu":
            raise TypeError(f"must give whole numbers, not {token_ids.dtype} of shape {token_ids.shape}")
        if token_ids.min() < 0 or token_ids.max() >= vocabulary_size:
            raise ValueError(f"must give token ids of the vocabulary, 0 to {vocabulary_size - 1}")
        mask[token_ids] = True
    return mask


def suppressed(row: Row) -> Processor:
    """suppress_tokens, at every position."""
    token_ids = token_array(row.params.suppress_tokens)
    return lambda step: step.forbid(token_ids, "suppress_tokens")


def suppressed_at_the_beginning(row: Row) -> Processor:
    """begin_suppress_tokens, for the output's first token."""
    token_ids = token_array(row.params.begin_suppress_tokens)

    def process(step: DecodingStep) -> None:
        if step.row.step == 0:
            step.forbid(token_ids, "begin_suppress_tokens")

    return process


def bad_words(row: Row) -> Processor:
    """bad_words_ids: the last token of a word whose others are the row's latest.

    As in transformers, a word that is an end token and nothing else is no bad word: the output could not end.
    """
    ends = {(token,) for token in row.eos_token_ids}
    sequences = [word for word in row.params.bad_words_ids if word not in ends]
    words = BannedWords(sequences)
    single_ids = token_array([word[0] for word in sequences if len(word) == 1])

    def process(step: DecodingStep) -> None:
        step.forbid(single_ids, "bad_words_ids")
        if ending := words.about_to_end(step):
            step.forbid(token_array([sequences[index][-1] for index in ending]), "bad_words_ids")

    return process


def repeated_ngrams(row: Row) -> Processor:
    """no_repeat_ngram_size: what would make an n-gram of prompt and output come a second time."""
    prompt, size = token_array(row.prompt_token_ids), row.params.no_repeat_ngram_size

    def process(step: DecodingStep) -> None:
        tokens = np.concatenate([prompt, step.output])
        step.forbid(_followers(tokens, step.latest(size - 1), size), "no_repeat_ngram_size")

    return process


def repeated_prompt_ngrams(row: Row) -> Processor:
    """encoder_no_repeat_ngram_size: what would make an n-gram of the prompt come again."""
    prompt = token_array(row.encoder_token_ids or row.prompt_token_ids)
    size = row.params.encoder_no_repeat_ngram_size

    def process(step: DecodingStep) -> None:
        step.forbid(_followers(prompt, step.latest(size - 1), size), "encoder_no_repeat_ngram_size")

    return process


def _followers(tokens: NDArray[np.int64], latest: Sequence[int], size: int) -> NDArray[np.int64]:
    """Returns the last token of each n-gram of `size` in `tokens` that begins with the `size` - 1 `latest`
    ones."""
    if size == 1:
        return tokens
    # With fewer tokens than `size` in all, the slice is empty.
    starts = np.flatnonzero(tokens[size - 2 : -1] == latest[-1])
    for offset in range(size - 3, -1, -1):
        if not starts.size:
            break
        starts = starts[tokens[starts + offset] == latest[offset]]
    followers: NDArray[np.int64] = tokens[starts + size - 1]
    return followers


class BannedWords:
    """Sequences of two tokens or more; sequences of one token are passed over.

    A step looks up one tuple for each length that occurs, however many words there are.
    """

    def __init__(self, words: Sequence[tuple[int, ...]]) -> None:
        self._by_length: dict[int, dict[tuple[int, ...], list[int]]] = {}
        for index, word in enumerate(words):
            if len(word) > 1:
                beginnings = self._by_length.setdefault(len(word), {})
                beginnings.setdefault(word[:-1], []).append(index)

    def about_to_end(self, step: DecodingStep) -> list[int]:
        """Places of the words of which only the last token is missing after the row's latest tokens.

        As in transformers, prompt and output must together have at least as many tokens as the word: one that
        begins with the very first token of the prompt is not seen.
        """
        indices: list[int] = []
        for length, beginnings in self._by_length.items():
            if length <= step.length:
                indices += beginnings.get(step.latest(length - 1), ())
        return sorted(indices)
