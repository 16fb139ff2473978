"""Long rows of the tiny model's documents, one after another, and how well a network answers in them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from mindspore import Tensor, nn
from tokenizers import Tokenizer

from tiny_corpus import counting_cases, sum_cases
from tiny_folder import END_OF_TEXT

PADDING = -100  # the label that ops.cross_entropy leaves out
COUNTING_SHARE = 0.12  # of the documents; a counting is about ten times as long as a sum

_Case = tuple[list[int], list[int]]  # token ids of a prompt, and of its answer with `<|endoftext|>`


@dataclass(frozen=True)
class Packed:
    """Rows of documents, each closed by `<|endoftext|>`; the last of a row is cut where the row ends."""

    tokens: npt.NDArray[np.int32]  # [N, T]
    labels: npt.NDArray[np.int32]  # [N, T]: the next token where it belongs to an answer, else PADDING
    answers: list[list[slice]]  # the places in `labels` of each whole answer of each row


class Packer:
    """Draws documents with replacement and packs them into rows."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._countings = _encode(tokenizer, counting_cases())
        self._sums = _encode(tokenizer, sum_cases())

    def rows(self, count: int, length: int, rng: np.random.Generator) -> Packed:
        """`count` rows of `length` tokens."""
        tokens = np.zeros((count, length), np.int32)
        labels = np.full((count, length), PADDING, np.int32)
        answers = []
        for row in range(count):
            ids, spans = self._row(length + 1, rng)
            tokens[row] = ids[:length]
            for span in spans:
                labels[row, span] = ids[span.start + 1 : min(span.stop, length) + 1]
            answers.append([span for span in spans if span.stop <= length])
        return Packed(tokens, labels, answers)

    def _row(self, length: int, rng: np.random.Generator) -> tuple[list[int], list[slice]]:
        """At least `length` token ids, and the places from which the tokens of each answer are predicted."""
        ids: list[int] = []
        spans = []
        while len(ids) < length:
            cases = self._countings if rng.random() < COUNTING_SHARE else self._sums
            prompt, answer = cases[rng.integers(len(cases))]
            start = len(ids) + len(prompt) - 1
            spans.append(slice(start, start + len(answer)))
            ids += prompt + answer
        return ids, spans


def score_packed(
    network: nn.Cell, packed: Packed, regions: Mapping[str, range]
) -> dict[str, dict[str, float]]:
    """By region of positions: the answers' mean loss (nats a token), share of right tokens, of right answers.

    An answer belongs to the region in which it begins. A token is right when it is the likeliest one
    after all the right ones before it.
    """
    losses: dict[str, list[float]] = {name: [] for name in regions}
    rights: dict[str, list[bool]] = {name: [] for name in regions}
    wholes: dict[str, list[bool]] = {name: [] for name in regions}
    for tokens, labels, spans in zip(packed.tokens, packed.labels, packed.answers, strict=True):
        logits = network(Tensor(tokens[None])).asnumpy()[0]
        for span in spans:
            name = next(name for name, region in regions.items() if span.start in region)
            right = logits[span].argmax(-1) == labels[span]
            losses[name] += _losses(logits[span], labels[span])
            rights[name] += list(right)
            wholes[name].append(bool(right.all()))
    return {
        name: {
            "loss": round(float(np.mean(losses[name])), 4),
            "tokens": round(float(np.mean(rights[name])), 4),
            "answers": round(float(np.mean(wholes[name])), 4),
        }
        for name in regions
    }


def _losses(logits: npt.NDArray[np.float32], labels: npt.NDArray[np.int32]) -> list[float]:
    """The negative log-probability of each label [T] under its logits [T, V]."""
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    chosen = np.take_along_axis(shifted, labels[:, None], -1)[:, 0]
    losses: list[float] = (np.log(np.exp(shifted).sum(-1)) - chosen).tolist()
    return losses


def _encode(tokenizer: Tokenizer, cases: list[tuple[str, str]]) -> list[_Case]:
    end = tokenizer.token_to_id(END_OF_TEXT)
    return [(tokenizer.encode(prompt).ids, [*tokenizer.encode(answer).ids, end]) for prompt, answer in cases]
