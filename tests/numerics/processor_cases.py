"""Random cases for logits processors: rows, and parameters that have an effect on them, alone and in company.

Without PyTorch, so that the tests can make the cases too.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

VOCABULARY = 29
EOS_TOKEN_IDS = (2, 7)
FORCED_BOS, FORCED_EOS = 5, (2, 9)
MAY_BE_SUPPRESSED = (1, 2, 10, 11, 12, 13)
"""Not all of the tokens that may be forced as well."""
LENGTHS = ((6, 0), (5, 9), (1, 0), (1, 4), (2, 1), (14, 3))
"""Of prompt and output."""


@dataclass(frozen=True)
class Case:
    """A row and its parameters, in a form for JSON.

    scores: the place of its scores among `random_scores`.
    setting: decoding parameters; `modulus` stands for a prefix_allowed_tokens_fn that gives `allowed_tokens`.
    """

    prompt: list[int]
    output: list[int]
    scores: int
    setting: dict[str, Any]


def allowed_tokens(modulus: int, token_ids: list[int]) -> list[int]:
    """All tokens but each `modulus`-th, beginning somewhere that depends on the row's tokens."""
    return [token for token in range(VOCABULARY) if (token + sum(token_ids)) % modulus]


def random_scores(seed: int) -> np.ndarray:
    """[4, V]: logits, tied logits, log-probabilities and flat logits."""
    generator = np.random.default_rng(seed)
    logits, peaked = generator.standard_normal((2, VOCABULARY)) * 3
    tied = np.round(generator.standard_normal(VOCABULARY) * 3)
    log_probabilities = peaked - np.log(np.exp(peaked).sum())
    flat = generator.standard_normal(VOCABULARY) * 0.1
    return np.stack([logits, tied, log_probabilities, flat]).astype(np.float32)


def random_cases(seed: int) -> Iterator[Case]:
    """Every processor alone on every length of row, every pair twice, and as many triples."""
    generator = np.random.default_rng(seed)
    for lengths in LENGTHS:
        for name in _SETTINGS:
            yield from _cases(generator, lengths, (name,))
    pairs = list(combinations(_SETTINGS, 2)) * 2
    triples = list(combinations(_SETTINGS, 3))
    chosen = generator.choice(len(triples), len(pairs), replace=False)
    for names in [*pairs, *(triples[place] for place in chosen)]:
        lengths = LENGTHS[generator.integers(len(LENGTHS))]
        yield from _cases(generator, lengths, names)


def _cases(
    generator: np.random.Generator, lengths: tuple[int, int], names: tuple[str, ...]
) -> Iterator[Case]:
    """One case, or none where transformers has another rule or the parameters cannot go together."""
    prompt_length, output_length = lengths
    if "forced_bos_token_id" in names:
        forced_by_us_alone = prompt_length > 1 and output_length == 0
        if forced_by_us_alone or "begin_suppress_tokens" in names:
            return
    text = generator.choice((1, 2, 3, 10), sum(lengths)).tolist()  # few, so that n-grams come again
    setting: dict[str, Any] = {}
    for name in names:
        setting |= _SETTINGS[name](generator, text)
    for name in {"min_length", "min_new_tokens"} & set(setting):
        setting[name] = min(setting[name], setting.get("max_length", setting[name]))
    yield Case(text[:prompt_length], text[prompt_length:], int(generator.integers(4)), setting)


_Make = Callable[[np.random.Generator, list[int]], dict[str, Any]]


def _penalty(name: str) -> _Make:
    return lambda generator, text: {name: float(generator.choice((0.7, 1.3, 2.0)))}


def _size(name: str) -> _Make:
    return lambda generator, text: {name: int(generator.integers(1, 5))}


def _words(generator: np.random.Generator, text: list[int]) -> list[list[int]]:
    """Words of one token, words that go on where the text ends, and one that does not."""
    last, *others = generator.choice((1, 2, 3, 4, 10, 20), 8).tolist()
    words = [[others[0]], [2], [text[-1], others[1]], [*text[-2:], others[2]], [*text[-3:], others[2]]]
    words += [[text[-1] + 1, others[3]], [*text, last]]
    return [list(word) for word in dict.fromkeys(map(tuple, words))]


def _biases(generator: np.random.Generator, text: list[int]) -> dict[str, Any]:
    return {"sequence_bias": [[word, round(generator.normal() * 3, 3)] for word in _words(generator, text)]}


def _bad_words(generator: np.random.Generator, text: list[int]) -> dict[str, Any]:
    return {"bad_words_ids": _words(generator, text)}


def _minimum(name: str) -> _Make:
    return lambda generator, text: {name: int(generator.integers(1, 12))}


def _forced_eos(generator: np.random.Generator, text: list[int]) -> dict[str, Any]:
    limit = len(text) + int(generator.choice((1, 1, 2)))
    return {"forced_eos_token_id": list(FORCED_EOS), "max_length": limit}


def _decay(generator: np.random.Generator, text: list[int]) -> dict[str, Any]:
    decay = [int(generator.integers(0, 4)), float(generator.choice((0.8, 1.05, 1.5)))]
    return {"exponential_decay_length_penalty": decay}


def _suppressed(name: str) -> _Make:
    return lambda generator, text: {name: generator.choice(MAY_BE_SUPPRESSED, 3, replace=False).tolist()}


_SETTINGS: dict[str, _Make] = {
    "sequence_bias": _biases,
    "encoder_repetition_penalty": _penalty("encoder_repetition_penalty"),
    "repetition_penalty": _penalty("repetition_penalty"),
    "no_repeat_ngram_size": _size("no_repeat_ngram_size"),
    "encoder_no_repeat_ngram_size": _size("encoder_no_repeat_ngram_size"),
    "bad_words_ids": _bad_words,
    "min_length": _minimum("min_length"),
    "min_new_tokens": _minimum("min_new_tokens"),
    "modulus": lambda generator, text: {"modulus": int(generator.integers(2, 5))},
    "forced_bos_token_id": lambda generator, text: {"forced_bos_token_id": FORCED_BOS},
    "forced_eos_token_id": _forced_eos,
    "exponential_decay_length_penalty": _decay,
    "suppress_tokens": _suppressed("suppress_tokens"),
    "begin_suppress_tokens": _suppressed("begin_suppress_tokens"),
    "renormalize_logits": lambda generator, text: {"renormalize_logits": True},
}
