"""What the tiny model has learnt: how often its greedy continuation is right to the last token."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from mindspore import Tensor, nn
from tokenizers import Tokenizer

from tiny_corpus import counting_cases, digit_sum, word_sum
from tiny_folder import END_OF_TEXT

_ROWS_PER_RUN = 20


def score(network: nn.Cell, tokenizer: Tokenizer, positions: int) -> dict[str, float]:
    """The fraction of prompts continued exactly, `<|endoftext|>` included, for each kind of prompt."""
    digits, teens = range(10), range(10, 21)
    kinds: dict[str, list[tuple[str, str]]] = {
        "countings": counting_cases(),
        "sums of one-digit numbers, words": [word_sum(a, b) for a in digits for b in digits],
        "sums of one-digit numbers, digits": [digit_sum(a, b) for a in digits for b in digits],
        "sums of ten to twenty, words": [word_sum(a, b) for a in teens for b in teens],
        "sums of ten to twenty, digits": [digit_sum(a, b) for a in teens for b in teens],
    }
    return {kind: fraction_right(network, tokenizer, positions, cases) for kind, cases in kinds.items()}


def fraction_right(
    network: nn.Cell, tokenizer: Tokenizer, positions: int, cases: Iterable[tuple[str, str]]
) -> float:
    """Greedy decoding is right exactly when the best token is right at every place of the right answer.

    So one forward pass over prompt and answer decides, and nothing needs to be generated.
    """
    end = tokenizer.token_to_id(END_OF_TEXT)
    rows, answers = [], []
    for prompt, answer in cases:
        prompt_ids, answer_ids = tokenizer.encode(prompt).ids, tokenizer.encode(answer).ids
        tokens = [*prompt_ids, *answer_ids, end]
        rows.append(tokens + [end] * (positions + 1 - len(tokens)))
        answers.append(slice(len(prompt_ids), len(tokens)))
    best = _best_next_tokens(network, np.array(rows, np.int32)[:, :-1])
    right = [list(best[i, a.start - 1 : a.stop - 1]) == rows[i][a] for i, a in enumerate(answers)]
    return round(sum(right) / len(right), 4)


def _best_next_tokens(network: nn.Cell, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Token ids [N, T] to the likeliest next ones [N, T], in equal runs so that one graph serves all."""
    best = []
    for first in range(0, len(tokens), _ROWS_PER_RUN):
        part = tokens[first : first + _ROWS_PER_RUN]
        padded = np.pad(part, ((0, _ROWS_PER_RUN - len(part)), (0, 0)))
        best.append(network(Tensor(padded)).asnumpy().argmax(-1)[: len(part)])
    return np.concatenate(best)
