"""A regular expression means what Python's `re` means by it, or is refused with a reason."""

import re
import sys
import unicodedata

import pytest

from mindbatch.decoding.python_regex import MOST_CHARACTERS, translated

AGE = rf"\p{{age={'.'.join(unicodedata.unidata_version.split('.')[:2])}}}"
DIGIT, WORD = rf"[\d&&{AGE}]", rf"[[\p{{L}}\p{{N}}_]&&{AGE}]"


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("ab9", "ab9"),
        ("a/b é🙂", r"a\x{2f}b\x{20}\x{e9}\x{1f642}"),
        ("a|bc|", "(?:a|bc|(?:))"),
        ("(a)(?:b)(?P<name>c)", "(?:a)b(?:c)"),
        ("a*b+?c?d{2,3}e{,4}f{5}", "(?:a){0,}(?:b){1,}(?:c){0,1}(?:d){2,3}(?:e){0,4}(?:f){5,5}"),
        (".", r"[^\x{a}]"),
        ("(?s).", "(?s:.)"),
        ("(?s:.).", r"(?:(?s:.))[^\x{a}]"),
        ("[^a-c_]", r"[^a-c\x{5f}]"),
        ("[^a]", "[^a]"),
        (r"\d\w\s", rf"[{DIGIT}][{WORD}][[\s\x{{1c}}-\x{{1f}}]]"),
        (r"(?a)\d\w\s", r"[[0-9]][[0-9A-Za-z_]][[\x{20}\x{9}-\x{d}]]"),
        (r"\D[^\W\S]", rf"[[^{DIGIT}]][^[^{WORD}][^[\s\x{{1c}}-\x{{1f}}]]]"),
        ("(?i)ab(?-i:c)", "(?i:ab(?:(?-i:c)))"),
        ("(?x) a  b # note", "ab"),
        # Sets in sets are of Rust's syntax alone: to Python these are characters.
        ("[[a]&&b]", r"[\x{5b}a]\x{26}\x{26}b\x{5d}"),
        ("[a--b]", None),
        (r"\x41\u00e9\U0001f642\101", r"A\x{e9}\x{1f642}A"),
    ],
)
def test_each_construct(pattern: str, expected: str | None) -> None:
    if expected is None:
        with pytest.raises(ValueError, match="is no regular expression"):
            translated(pattern)
    else:
        assert translated(pattern).replace("(?:)", "") == expected.replace("(?:)", "")


@pytest.mark.parametrize("pattern", ["^ab$", r"\Aab\Z", "(^ab$)", "(?:^ab)$", "^(?:ab$)"])
def test_anchors_at_the_edges_change_nothing(pattern: str) -> None:
    assert re.sub(r"\(\?:|\)", "", translated(pattern)) == "ab"


def test_anchors_of_branches_stand_at_the_edges() -> None:
    assert translated("^a$|^b") == "(?:a|b)"


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("[", "is no regular expression (unterminated character set"),
        ("a{2,1}", "is no regular expression"),
        (r"\p{L}", "is no regular expression (bad escape"),
        ("a{99999999999999999999}", "repeats too often"),
        ("(" * 5000 + "a" + ")" * 5000, "nested too deeply"),
        ("(" * 61 + "a" + ")" * 61, "at most 60 levels"),
        ("a^b", "an anchor inside"),
        ("a$b", "an anchor inside"),
        ("(^a)*", "an anchor inside"),
        (r"\bword", "an anchor inside"),
        ("(?=a)b", "a look-around"),
        ("(?<!a)b", "a look-around"),
        ("(?!)", "a look-around"),
        (r"(a)\1", "a back-reference"),
        ("(a)?(?(1)b|c)", "a conditional group"),
        ("(?ai)k", "the flags a and i"),
        ("\ud800", "half a character"),
        (r"[a-\udfff]", "half a character"),
        ("a" * (MOST_CHARACTERS + 1), f"at most {MOST_CHARACTERS} are allowed"),
    ],
)
def test_what_cannot_be_followed_is_refused_with_a_reason(pattern: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        translated(pattern)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no such syntax")
@pytest.mark.parametrize(
    ("pattern", "reason"), [("a++a", "a possessive repeat"), ("(?>a)", "an atomic group")]
)
def test_what_gives_nothing_back_is_refused(pattern: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        translated(pattern)


def test_pythons_words_and_digits_are_the_categories_that_stand_for_them() -> None:
    for code in range(0x11000):
        character, category = chr(code), unicodedata.category(chr(code))
        assert bool(re.match(r"\w", character)) == (category[0] in "LN" or character == "_")
        assert bool(re.match(r"\d", character)) == (category == "Nd")
