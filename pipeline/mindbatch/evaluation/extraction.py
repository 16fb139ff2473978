"""Reading the answer out of a generated text."""

import re
from collections import deque
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation

LONGEST_NUMBER = 400
"""Characters; a longer run of digits is no answer to anything."""
# A sign, digits with or without thousands separators, a fraction; no digit or letter goes straight before it.
_NUMBER = re.compile(r"(?<![\w.])[-+\u2212]?\$?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+|(?<=\d)\.?)(?!\d)")
_FIRST_LETTER = re.compile(r"\s*\(?([A-Z])(?![A-Za-z'])(?!\s+[a-z])")
_LETTER = re.compile(r"(?<![A-Za-z])([A-HJ-Z])(?![A-Za-z'])")
_SAID_LETTER = re.compile(
    r"(?:[Aa]nswer|ANSWER)(?:\s+is)?\s*[:\uff1a]?\s*\(?([A-Z])(?![A-Za-z])"
    r"|\u7b54\u6848[\u662f\u4e3a\uff1a:\s]*\(?([A-Z])"
)


Extraction = Callable[[str], str | None]
"""The answer in a text; None where there is none."""


def first_line(text: str) -> str | None:
    """Returns the first line that has something in it; None where none has."""
    return next((line.strip() for line in text.splitlines() if line.strip()), None)


def after_hashes(text: str) -> str | None:
    """Finds the number after the first `####`, as GSM8K's solutions end; else the last number."""
    _, marker, rest = text.partition("####")
    return (first_number(rest) if marker else None) or last_number(text)


def first_number(text: str) -> str | None:
    """Finds the first number of a text in its plain form: `$1,200.50` is `1200.5`; None without any."""
    return next((plain for match in _NUMBER.finditer(text) if (plain := plain_number(match[0]))), None)


def last_number(text: str) -> str | None:
    """Returns the last number of a text in its plain form."""
    numbers = [match[0] for match in _NUMBER.finditer(text)]
    return next((plain for number in reversed(numbers) if (plain := plain_number(number))), None)


def plain_number(text: str) -> str | None:
    """Strips separators, sign of a currency, plus and trailing zeros from a number; None where it is none.

    So that 72, 72.0 and $72.00 are one answer.
    """
    bare = text.strip().replace(",", "").replace("$", "").replace("\u2212", "-").rstrip(".")
    if not bare or len(bare) > LONGEST_NUMBER:
        return None
    try:
        number = Decimal(bare)
    except InvalidOperation:
        return None
    if not number.is_finite():
        return None
    plain = format(number, "f")
    plain = plain.rstrip("0").rstrip(".") if "." in plain else plain
    return "0" if plain in ("-0", "+0", "") else plain.removeprefix("+").lstrip()


def option_letter(text: str) -> str | None:
    """Finds the letter of a choice: the first, the one named as the answer, or else the last by itself."""
    begins, named = _FIRST_LETTER.match(text), _SAID_LETTER.search(text)
    if begins:
        return begins[1]
    if named:
        return named[1] or named[2]
    alone: list[str] = _LETTER.findall(text)
    return alone[-1] if alone else None


EXTRACTIONS: Mapping[str, Extraction] = {
    "text": str.strip,
    "first_line": first_line,
    "number": last_number,
    "gsm8k": after_hashes,
    "letter": option_letter,
}


def reference_extraction(extract: str) -> Extraction:
    """Returns how `task.extract` reads a reference; no pattern searches those."""
    return EXTRACTIONS.get(extract, str.strip)


def pattern_extraction(pattern: str) -> Extraction:
    """Returns the function that finds the last match of a regular expression, or of its first group."""
    compiled = re.compile(pattern)

    def last_match(text: str) -> str | None:
        matches = deque(compiled.finditer(text), maxlen=1)
        return (matches[0][1 if compiled.groups else 0] or None) if matches else None

    return last_match
