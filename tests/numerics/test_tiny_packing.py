"""The tiny model's documents in long rows: what is packed, what is labelled, and how rows are scored."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import Tokenizer

from tiny_corpus import counting_cases, sum_cases
from tiny_packing import PADDING, Packed, Packer, score_packed

FOLDER = Path(__file__).parents[2] / "examples/tiny_gpt2"
LENGTH = 600


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_file(str(FOLDER / "tokenizer.json"))


@pytest.fixture(scope="module")
def packed(tokenizer):
    return Packer(tokenizer).rows(4, LENGTH, np.random.default_rng(5))


def test_rows_are_whole_documents_of_both_kinds_closed_by_end_of_text(tokenizer, packed):
    end = tokenizer.token_to_id("<|endoftext|>")
    countings = {prompt + answer for prompt, answer in counting_cases()}
    sums = {prompt + answer for prompt, answer in sum_cases()}
    seen = []
    for tokens in packed.tokens:
        cuts = [0, *(np.flatnonzero(tokens == end) + 1)]
        seen += [tokenizer.decode(tokens[a : b - 1]) for a, b in zip(cuts, cuts[1:], strict=False)]
    assert set(seen) <= countings | sums
    assert set(seen) & countings
    assert set(seen) & sums


def test_labels_are_the_tokens_that_follow_and_only_those_of_answers(tokenizer, packed):
    labelled = packed.labels[:, :-1] != PADDING
    np.testing.assert_array_equal(packed.labels[:, :-1][labelled], packed.tokens[:, 1:][labelled])
    answers = {answer + "<|endoftext|>" for _, answer in [*counting_cases(), *sum_cases()]}
    for labels, spans in zip(packed.labels, packed.answers, strict=True):
        assert {tokenizer.decode(labels[span], skip_special_tokens=False) for span in spans} <= answers
        last = spans[-1].stop
        assert (labels[last:] != PADDING).sum() <= LENGTH - last  # of the answer that the end of the row cuts
        assert sum(span.stop - span.start for span in spans) == (labels[:last] != PADDING).sum()


def test_a_seed_gives_the_same_rows(tokenizer, packed):
    again = Packer(tokenizer).rows(4, LENGTH, np.random.default_rng(5))
    other = Packer(tokenizer).rows(4, LENGTH, np.random.default_rng(6))
    np.testing.assert_array_equal(again.tokens, packed.tokens)
    assert (other.tokens != packed.tokens).any()


def test_scores_by_region_where_an_answer_begins():
    """Five tokens of vocabulary, a logit of 9 for the guess: one wrong token spoils one answer only."""
    labels = np.array([[PADDING, 1, 2, PADDING, 3, 4]], np.int32)
    answers = [[slice(1, 3), slice(4, 6)]]
    guesses = np.array([0, 1, 2, 0, 3, 0])

    def network(_tokens):
        return SimpleNamespace(asnumpy=lambda: (9.0 * np.eye(5, dtype=np.float32)[guesses])[None])

    packed = Packed(np.zeros((1, 6), np.int32), labels, answers)
    scores = score_packed(network, packed, {"early": range(3), "late": range(3, 6)})
    right, wrong = np.log(np.exp(9) + 4) - 9, np.log(np.exp(9) + 4)
    assert scores["early"] == {"loss": pytest.approx(right, abs=1e-4), "tokens": 1.0, "answers": 1.0}
    assert scores["late"] == {
        "loss": pytest.approx((right + wrong) / 2, abs=1e-4),
        "tokens": 0.5,
        "answers": 0.0,
    }
