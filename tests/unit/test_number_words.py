"""The shipped questions of number_words, read without the code that wrote them."""

import orjson
import pytest

from mindbatch.config.compose import compose_task
from mindbatch.config.paths import data_root, resolve_path
from mindbatch.tasks.registry import TASKS
from number_words import TASKS as SEQUENCES
from number_words import questions, seen

FILES = {name: data_root() / f"examples/number_words/{name}.jsonl" for name in SEQUENCES}
ROWS = {name: [orjson.loads(line) for line in file.read_bytes().splitlines()] for name, file in FILES.items()}
SMALL = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]  # fmt: skip
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def value(words: str) -> int:
    if words == "one hundred":
        return 100
    tens, _, unit = words.partition("-")
    return SMALL.index(words) if words in SMALL else 20 + 10 * TENS.index(tens) + SMALL.index(unit or "zero")


def numbers(row: dict[str, str]) -> list[int]:
    """The first number, then those of the answer."""
    first = row["prompt"].partition(": ")[2].removesuffix(",")
    return [value(words) for words in (first, *row["reference"].removesuffix(".").split(", "))]


def test_the_files_are_what_their_maker_writes() -> None:
    assert {name: [*questions(task)] for name, task in SEQUENCES.items()} == ROWS


@pytest.mark.parametrize(
    ("task", "steps", "ends"),
    [("decreasing", {-1}, {0, 50}), ("even", {1, 2}, {100}), ("increasing", {1}, {50, 100})],
)
def test_answers_are_right(task: str, steps: set[int], ends: set[int]) -> None:
    rows = [*map(numbers, ROWS[task])]
    assert len(rows) == 18
    for first, *others in rows:
        assert others[0] - first in steps
        assert {b - a for a, b in zip(others, others[1:], strict=False)} <= {max(steps)}
        assert ends & {*others} == {others[-1]}
        assert task != "even" or not any(number % 2 for number in others)


@pytest.mark.parametrize("task", ["decreasing", "even"])
def test_questions_are_held_out_of_training(task: str) -> None:
    asked = {numbers(row)[0] for row in ROWS[task]}
    trained = {*seen(SEQUENCES[task])}
    assert asked.isdisjoint(trained)
    assert asked | trained == {*range(1, 99)}


def test_tasks_share_prompts() -> None:
    """So that the adapter alone decides what is right."""
    prompts = [{row["prompt"] for row in ROWS[task]} for task in ("decreasing", "even")]
    assert len(prompts[0] & prompts[1]) > 3


@pytest.mark.parametrize(
    ("option", "task"),
    [
        ("number_words", "decreasing"),
        ("number_words_even", "even"),
        ("number_words_increasing", "increasing"),
    ],
)
def test_the_options_name_the_shipped_files(option: str, task: str) -> None:
    data = compose_task(TASKS["batch"], ["model=tiny_gpt2", f"data={option}"]).settings
    assert resolve_path(data["data.path"].value) == FILES[task]
    assert {data["data.key_column"].value, data["data.prompt_column"].value, "task", "reference"} == ROWS[
        task
    ][0].keys()
    assert {row["task"] for row in ROWS[task]} == {task}
