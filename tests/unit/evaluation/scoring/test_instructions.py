"""Instructions that a program can verify."""

from collections.abc import Sequence
from typing import Any

import pytest

from mindbatch.evaluation import metric_of
from mindbatch.evaluation.answers import CHECKS, followed, instruction
from mindbatch.evaluation.metric import Answer


def value(name: str, rows: Sequence[Any]) -> float:
    """The value of rows of one sample each."""
    return metric_of(name).of([(row,) for row in rows])


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
