"""Answers read out of texts and judged: matches, BLEU, ROUGE, instructions, likelihoods."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU

from mindbatch.evaluation import metric_of
from mindbatch.evaluation.answers import CHECKS, followed, instruction, longest_common, rouge_words
from mindbatch.evaluation.extraction import (
    EXTRACTIONS,
    after_hashes,
    first_number,
    last_number,
    option_letter,
    pattern_extraction,
    plain_number,
)
from mindbatch.evaluation.metric import Answer, ChoiceScores, TextLikelihood


def value(name: str, rows: Sequence[Any]) -> float:
    """The value of rows of one sample each."""
    return metric_of(name).of([(row,) for row in rows])


# Reference, answer, and rouge1, rouge2, rougeL (F) of rouge-score 0.1.2.
ROUGE = [
    ("the cat sat on the mat", "the cat lay on a mat today", (8 / 13, 2 / 11, 8 / 13)),
    ("A quick brown fox, it's 3 PM!", "quick, brown foxes at 3 pm", (4 / 7, 1 / 3, 4 / 7)),
    ("one two three four", "four three two one", (1.0, 0.0, 0.25)),
    ("x", "y", (0.0, 0.0, 0.0)),
    ("Hello-World foo_bar", "hello world foo bar", (1.0, 1.0, 1.0)),
]


@pytest.mark.parametrize(("reference", "text", "scores"), ROUGE)
def test_rouge_is_that_of_rouge_score(reference: str, text: str, scores: tuple[float, ...]) -> None:
    row = Answer(text, (reference,))
    assert [value(name, [row]) for name in ("rouge1", "rouge2", "rougeL")] == pytest.approx(scores)


@pytest.mark.slow
def test_rouge_of_chinese_divides_words_by_jieba() -> None:
    assert rouge_words("这件衬衫的款式非常的宽松") == ["这件", "衬衫", "的", "款式", "非常", "的", "宽松"]
    assert value("rouge1", [Answer("衬衫宽松", ("宽松衬衫",))]) == 1.0
    assert value("rougeL", [Answer("衬衫宽松", ("宽松衬衫",))]) == 0.5


@pytest.mark.parametrize(("name", "tokenize"), [("bleu", "13a"), ("bleu_zh", "zh")])
def test_bleu_of_sums_is_that_of_the_corpus(name: str, tokenize: str) -> None:
    texts = ["the cat sat on a mat", "", "这件衬衫非常宽松。", "a b c d e"]
    references = [["the cat sat on the mat", "a cat"], ["nothing"], ["这件衬衫很宽松。"], ["a b c d f"]]
    rows = [Answer(text, tuple(each)) for text, each in zip(texts, references, strict=True)]
    streams = [[each[min(number, len(each) - 1)] for each in references] for number in range(2)]
    expected = BLEU(tokenize=tokenize).corpus_score(texts, streams).score
    assert value(name, rows) == pytest.approx(expected)
    assert value(name, rows[:1]) > 30 > value(name, rows[1:2])


def test_the_longest_common_subsequence() -> None:
    assert longest_common("abcbdab", "bdcaba") == 4
    assert longest_common("", "abc") == 0


@pytest.mark.parametrize(
    ("text", "references", "exact", "squad", "f1"),
    [
        (" seven \n", ("seven",), 1, 1, 1.0),
        ("The Eiffel Tower!", ("Eiffel tower", "Paris"), 0, 1, 1.0),
        ("in the city of Paris", ("Paris", "city"), 0, 0, 0.4),
        (None, ("",), 0, 0, 0.0),
        ("", ("",), 1, 1, 1.0),
        ("the", ("",), 0, 1, 1.0),
        ("x", (), 0, 0, 0.0),
    ],
)
def test_matches(text: str | None, references: tuple[str, ...], exact: int, squad: int, f1: float) -> None:
    row = Answer(text, references)
    found = [value(name, [row]) for name in ("exact_match", "squad_em", "f1")]
    assert found == pytest.approx([exact, squad, f1])


def test_the_likeliest_choice_and_the_likeliest_by_bytes() -> None:
    short_wins = ChoiceScores((-2.0, -3.0), (1, 10), correct=1)
    assert (value("acc", [short_wins]), value("acc_norm", [short_wins])) == (0.0, 1.0)
    equal = ChoiceScores((-1.0, -1.0), (1, 1), correct=1)
    assert value("acc", [equal, short_wins, ChoiceScores((-1.0,), (0,), 0)]) == pytest.approx(1 / 3)


def test_perplexity_counts_every_unit_of_all_texts_the_same() -> None:
    texts = [TextLikelihood(-2.0, 2, 1, 8), TextLikelihood(-10.0, 4, 3, 16)]
    assert value("perplexity", texts) == pytest.approx(math.exp(12 / 6))
    assert value("word_perplexity", texts) == pytest.approx(math.exp(12 / 4))
    assert value("byte_perplexity", texts) == pytest.approx(math.exp(12 / 24))
    assert value("bits_per_byte", texts) == pytest.approx(12 / 24 / math.log(2))
    assert math.isinf(value("perplexity", [TextLikelihood(-1e6, 1, 1, 1)]))
    assert math.isnan(metric_of("perplexity").of([]))


CASES: list[tuple[str, dict[str, Any], str, str]] = [
    ("keywords:existence", {"keywords": ["sun", "Moon"]}, "The moon, the SUN.", "The moons and the sun."),
    ("keywords:forbidden_words", {"forbidden_words": ["rain"]}, "A train.", "Rain!"),
    ("keywords:frequency", {"keyword": "go", "frequency": 2, "relation": "at least"}, "go, Go", "go gone"),
    (
        "keywords:letter_frequency",
        {"letter": "e", "let_frequency": 3, "let_relation": "less than"},
        "Eel",
        "eeel",
    ),
    (
        "length_constraints:number_words",
        {"num_words": 3, "relation": "less than"},
        "two words",
        "now three words",
    ),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 2, "relation": "at least"},
        "A. B!",
        "3.5 is one.",
    ),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a\n***\nb", "a\n\nb"),
    ("detectable_format:json_format", {}, '```json\n{"a": [1]}\n```', "{a: 1}"),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n- b", "* a\n*b"),
    ("detectable_format:title", {}, "<<A title>>\ntext", "<< >>"),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[name] at [place]", "[name]"),
    ("change_case:english_lowercase", {}, "all small.", "Not all."),
    ("change_case:english_capital", {}, "ALL LARGE", "ALl"),
    ("punctuation:no_comma", {}, "one; two", "one, two"),
    ("startend:end_checker", {"end_phrase": "The end."}, 'So it was. the end."', "The end. Really"),
    ("startend:quotation", {}, ' "quoted" ', '"'),
]


@pytest.mark.parametrize(("name", "given", "good", "bad"), CASES, ids=[case[0] for case in CASES])
def test_what_follows_and_what_does_not(name: str, given: dict[str, Any], good: str, bad: str) -> None:
    reference = instruction(name, {**given, "unused": None})
    assert followed(Answer(good, (reference,))) == [True]
    assert followed(Answer(bad, (reference,))) == [False]
    assert followed(Answer(None, (reference,))) == [False]


def test_every_check_has_a_case() -> None:
    assert {case[0] for case in CASES} == {*CHECKS}


def test_shares_of_prompts_and_of_instructions() -> None:
    both = (instruction("punctuation:no_comma", None), instruction("change_case:english_capital", {}))
    rows = [Answer("YES", both), Answer("YES, NO", both), Answer("yes, no", both[:1])]
    assert value("prompt_level_strict_acc", rows) == pytest.approx(1 / 3)
    assert value("inst_level_strict_acc", rows) == pytest.approx(3 / 5)


def test_unknown_instructions_and_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="'combination:two_responses': not verified here"):
        instruction("combination:two_responses", {})
    with pytest.raises(ValueError, match="lack 'num_words'"):
        instruction("length_constraints:number_words", {"relation": "at least"})


GSM8K = Path(__file__).parents[5] / "shared/data/datasets/gsm8k_test.jsonl"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so 12 + 30 = 42 dollars", "42"),
        ("$1,200.50", "1200.5"),
        ("It costs 3.", "3"),
        ("\u22127 degrees", "-7"),
        ("72.0", "72"),
        ("-0", "0"),
        (".5", "0.5"),
        ("\uff15", "5"),
        ("in v1.2.3 of a1", None),
        ("none at all", None),
        ("9" * 500, None),
        ("", None),
    ],
)
def test_the_last_number_in_its_plain_form(text: str, number: str | None) -> None:
    assert last_number(text) == number


def test_gsm8k_takes_what_follows_the_hashes() -> None:
    assert after_hashes("6 * 7 = 42\n#### 42\n\nQuestion: 3 and 4?") == "42"
    assert after_hashes("so it is 41\n#### many") == "41"
    assert after_hashes("####") is None
    assert first_number("1 of 2") == "1"


@pytest.mark.skipif(not GSM8K.exists(), reason="needs shared/data beside the checkout")
def test_every_reference_of_gsm8k_is_read() -> None:
    answers = [json.loads(line)["answer"] for line in GSM8K.read_text().splitlines()]
    extraction = EXTRACTIONS["gsm8k"]
    wanted = [plain_number(answer.rpartition("####")[2]) for answer in answers]
    assert None not in wanted
    assert [extraction(answer) for answer in answers] == wanted


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("C", "C"),
        (" (B) because D is wrong", "B"),
        ("The answer is (B).", "B"),
        ("答案是D。", "D"),
        ("I think A", "A"),
        ("A cat sits on B", "B"),
        ("Answer: apple", None),
        ("", None),
    ],
)
def test_the_letter_of_a_choice(text: str, letter: str | None) -> None:
    assert option_letter(text) == letter


def test_a_pattern_gives_its_last_match_or_group() -> None:
    assert pattern_extraction(r"<(\w+)>")("<a> <b> c") == "b"
    assert pattern_extraction(r"\d")("1 2 x") == "2"
    assert pattern_extraction(r"\d")("x") is None


@given(st.text(max_size=60))
def test_no_text_breaks_an_extraction(text: str) -> None:
    for extraction in EXTRACTIONS.values():
        assert isinstance(extraction(text), str | None)
