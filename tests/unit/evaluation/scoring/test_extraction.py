"""Answers read out of texts, good and malformed."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindbatch.evaluation.extraction import (
    EXTRACTIONS,
    after_hashes,
    first_number,
    last_number,
    option_letter,
    pattern_extraction,
    plain_number,
)

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
    with pytest.raises(ValueError, match="no regular expression"):
        pattern_extraction("(")


@given(st.text(max_size=60))
def test_no_text_breaks_an_extraction(text: str) -> None:
    for extraction in EXTRACTIONS.values():
        assert isinstance(extraction(text), str | None)
