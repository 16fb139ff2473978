"""The synthetic text that the shipped tiny model learns: counting in words, and small sums."""

import itertools
from dataclasses import dataclass

_UNITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_TEENS = (
    *("ten", "eleven", "twelve", "thirteen", "fourteen"),
    *("fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")

LARGEST_ADDEND = 20


@dataclass(frozen=True)
class Counting:
    """One way of counting; a document names it, begins at any of its numbers and goes on to its last one."""

    title: str
    numbers: range

    def starts(self) -> list[int]:
        """Every number a document may begin with: all but the last."""
        return list(self.numbers[:-1])

    def prompt(self, start: int) -> str:
        """The words up to and including the first number, as a user would type them."""
        return f"{self.title}: {spell(start)},"

    def document(self, start: int) -> str:
        """The whole counting from `start`, closed by a full stop."""
        numbers = self.numbers[self.numbers.index(start) :]
        return f"{self.title}: {', '.join(spell(number) for number in numbers)}."


# Each has one end for one beginning (so a trained model knows when to stop) and fits in 256 tokens.
COUNTINGS = (
    Counting("An increasing sequence", range(0, 51)),
    Counting("An increasing sequence", range(50, 101)),
    Counting("A decreasing sequence", range(50, -1, -1)),
    Counting("A decreasing sequence", range(100, 49, -1)),
    Counting("Even numbers", range(0, 101, 2)),
    Counting("Odd numbers", range(1, 101, 2)),
    Counting("Counting by fives", range(0, 101, 5)),
    Counting("Counting by tens", range(0, 101, 10)),
)


def spell(number: int) -> str:
    """The English words of a number from 0 to 100, such as "forty-two"."""
    if number == 100:
        return "one hundred"
    if number < 20:
        return (*_UNITS, *_TEENS)[number]
    tens, unit = _TENS[number // 10 - 2], number % 10
    return f"{tens}-{_UNITS[unit]}" if unit else tens


def word_sum(left: int, right: int) -> tuple[str, str]:
    """A sum in words, as the prompt and its one right continuation."""
    return f"{spell(left)} plus {spell(right)} is", f" {spell(left + right)}."


def digit_sum(left: int, right: int) -> tuple[str, str]:
    """A sum in digits, as the prompt and its one right continuation."""
    return f"{left} + {right} =", f" {left + right}."


def counting_cases() -> list[tuple[str, str]]:
    """Every counting from every first number, as the prompt and its one right continuation."""
    return [
        (counting.prompt(start), counting.document(start).removeprefix(counting.prompt(start)))
        for counting in COUNTINGS
        for start in counting.starts()
    ]


def sum_cases() -> list[tuple[str, str]]:
    """Every sum in both ways of writing, as the prompt and its one right continuation."""
    pairs = itertools.product(range(LARGEST_ADDEND + 1), repeat=2)
    return [write(left, right) for left, right in pairs for write in (word_sum, digit_sum)]


def training_countings() -> list[str]:
    """Every counting, one document for each first number."""
    return [counting.document(start) for counting in COUNTINGS for start in counting.starts()]


def training_sums() -> list[str]:
    """Every sum in both ways of writing; those of one-digit numbers thrice: they must be known by heart."""
    documents = []
    for left, right in itertools.product(range(LARGEST_ADDEND + 1), repeat=2):
        times = 3 if max(left, right) < 10 else 1
        documents += ["".join(write(left, right)) for write in (word_sum, digit_sum)] * times
    return documents
