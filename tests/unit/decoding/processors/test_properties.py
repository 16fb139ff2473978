"""What an output that obeys its processors never holds, whatever the model's scores are."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mindbatch.decoding import DecodingParams
from mindbatch.decoding.processors import adjust
from mindbatch.decoding.row import NoTokenLeftError, Row

VOCABULARY, END, LONGEST = 6, 5, 25
tokens = st.integers(0, VOCABULARY - 1)
prompts = st.lists(tokens, min_size=1, max_size=12)
seeds = st.integers(0, 2**32 - 1)


def generated(prompt: Sequence[int], seed: int, eos: tuple[int, ...] = (END,), **params: Any) -> list[int]:
    """A greedy output under random scores, to its end token or until no token is left."""
    generator = np.random.default_rng(seed)
    row = Row(DecodingParams(max_new_tokens=LONGEST, **params), prompt, [], eos, row_hash=0)
    while row.step < LONGEST and not (row.step and row.output_token_ids[-1] in eos):
        try:
            scores = adjust(generator.standard_normal(VOCABULARY).astype(np.float32), row)
        except NoTokenLeftError:
            break
        row.output_token_ids.append(int(scores.argmax()))
    return row.output_token_ids


def holds(text: Sequence[int], word: Sequence[int]) -> bool:
    return any(tuple(text[i : i + len(word)]) == tuple(word) for i in range(len(text)))


def ngrams(text: Sequence[int], size: int) -> list[tuple[int, ...]]:
    return [tuple(text[i : i + size]) for i in range(len(text) - size + 1)]


@given(prompts, seeds, st.integers(1, 4))
def test_no_ngram_of_the_text_comes_again(prompt: list[int], seed: int, size: int) -> None:
    output = generated(prompt, seed, eos=(), no_repeat_ngram_size=size)
    text = prompt + output
    for end in range(len(prompt) + 1, len(text) + 1):
        assert not holds(text[: end - 1], text[end - size : end]) or end < size


@given(prompts, seeds, st.integers(1, 4))
def test_no_ngram_of_the_prompt_comes_again(prompt: list[int], seed: int, size: int) -> None:
    output = generated(prompt, seed, eos=(), encoder_no_repeat_ngram_size=size)
    later = ngrams([*prompt, *output], size)[max(0, len(prompt) - size + 1) :]
    assert not set(later) & set(ngrams(prompt, size))


@given(prompts, seeds, st.lists(st.lists(tokens, min_size=1, max_size=3), max_size=8))
def test_no_output_holds_a_bad_word(prompt: list[int], seed: int, words: list[list[int]]) -> None:
    output = generated(prompt, seed, bad_words_ids=words)
    assert not any(holds(output, word) for word in words if word != [END])


@given(prompts, seeds, st.integers(0, LONGEST), st.integers(0, LONGEST))
def test_no_output_ends_below_its_minimum(prompt: list[int], seed: int, total: int, new: int) -> None:
    output = generated(prompt, seed, min_length=total, min_new_tokens=new)
    assert len(output) == LONGEST or len(output) > max(new, total - len(prompt))


@given(prompts, seeds, st.sets(tokens, max_size=VOCABULARY - 1), st.sets(tokens, max_size=3))
def test_no_output_holds_a_suppressed_token(
    prompt: list[int], seed: int, never: set[int], not_first: set[int]
) -> None:
    output = generated(prompt, seed, suppress_tokens=list(never), begin_suppress_tokens=list(not_first))
    assert not never & set(output)
    assert not not_first & set(output[:1])


@given(prompts, seeds, tokens)
def test_every_output_begins_and_ends_as_it_is_forced_to(prompt: list[int], seed: int, first: int) -> None:
    output = generated(prompt, seed, eos=(END,), forced_bos_token_id=first, forced_eos_token_id=END)
    assert output[0] == first
    assert output[-1] == END


def parameters() -> st.SearchStrategy[dict[str, Any]]:
    words = st.lists(tokens, min_size=1, max_size=3).map(tuple)
    return st.fixed_dictionaries(
        {},
        optional={
            "repetition_penalty": st.floats(0.5, 2),
            "encoder_repetition_penalty": st.floats(0.5, 2),
            "frequency_penalty": st.floats(-2, 2),
            "no_repeat_ngram_size": st.integers(0, 4),
            "encoder_no_repeat_ngram_size": st.integers(0, 4),
            "bad_words_ids": st.lists(words, max_size=4),
            "sequence_bias": st.dictionaries(words, st.floats(-5, 5), max_size=4),
            "exponential_decay_length_penalty": st.tuples(st.integers(0, 5), st.floats(0.5, 2)),
        },
    )


@given(prompts, st.lists(tokens, max_size=12), st.integers(0, 12), seeds, parameters())
def test_a_row_keeps_nothing_of_what_it_was_before(
    prompt: list[int], output: list[int], before: int, seed: int, params: dict[str, Any]
) -> None:
    """A fork of a row that has come some way, and that row after it, get what rows made anew get."""
    scores = np.random.default_rng(seed).standard_normal(VOCABULARY).astype(np.float32)

    def make(so_far: list[int]) -> Row:
        return Row(DecodingParams(**params), prompt, so_far, (END,), row_hash=0)

    def result(row: Row) -> list[float] | None:
        try:
            return adjust(scores, row).tolist()
        except NoTokenLeftError:
            return None

    parent = make(output[:before])
    result(parent)
    twin = parent.fork()
    twin.output_token_ids[:] = output
    parent.output_token_ids += output
    assert result(twin) == result(make(output))
    assert result(parent) == result(make(output[:before] + output))
