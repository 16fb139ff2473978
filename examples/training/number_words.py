"""Writes examples/number_words: questions about sequences of number words, a file for each task.

python examples/training/number_words.py examples/number_words

A third of the first numbers is held out: the adapters of train_adapters.py never see a sequence begin there.
"""

import argparse
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tiny_corpus import spell

STARTS = range(1, 99)
NUM_QUESTIONS = 18  # of each task
MOST_NUMBERS = 30  # of an answer, so that it ends within the tokens that are generated without being asked


@dataclass(frozen=True)
class SequenceTask:
    """How a sequence is asked for, by the title before its first number, and which numbers follow."""

    name: str
    title: str

    def prompt(self, start: int) -> str:
        """The words up to and including the first number."""
        return f"{self.title}: {spell(start)},"

    def answer(self, start: int) -> str:
        """The numbers that follow, closed by a full stop; goes after the prompt and a space."""
        return f"{', '.join(map(spell, self.numbers(start)))}."

    def numbers(self, start: int) -> range:
        """The numbers that follow `start`, as far as the base's own sequences of the kind go."""
        if self.name == "decreasing":
            return range(start - 1, (0 if start <= 50 else 50) - 1, -1)
        if self.name == "even":
            return range(start + 2 - start % 2, 101, 2)
        return range(start + 1, (50 if start < 50 else 100) + 1)


# The first two share a prompt that the base has never seen: what follows is up to the adapter. The base knows
# the third by heart, and shows what an adapter forgets.
DECREASING = SequenceTask("decreasing", "Continue")
EVEN = SequenceTask("even", "Continue")
INCREASING = SequenceTask("increasing", "An increasing sequence")
TASKS = {task.name: task for task in (DECREASING, EVEN, INCREASING)}


def held_out(task: SequenceTask) -> list[int]:
    """First numbers of the questions, drawn by a hash so that no version of a library changes them.

    No two are neighbours, and none stands at the edge of its ten or of the halves: what follows a number can
    be learnt from those beside it, but not what is the rule nowhere else.
    """
    short = (start for start in STARTS if len(task.numbers(start)) <= MOST_NUMBERS and _is_inner(start))
    chosen: list[int] = []
    for start in sorted(short, key=lambda start: hashlib.sha256(str(start).encode()).digest()):
        if len(chosen) < NUM_QUESTIONS and not {start - 1, start + 1} & {*chosen}:
            chosen.append(start)
    return sorted(chosen)


def _is_inner(start: int) -> bool:
    return start % 10 not in (0, 1, 9) and start not in range(50, 55)


def seen(task: SequenceTask) -> list[int]:
    """The other first numbers, for training."""
    return sorted({*STARTS} - {*held_out(task)})


def questions(task: SequenceTask) -> Iterable[dict[str, str]]:
    """A question for every first number that is held out."""
    for start in held_out(task):
        yield {
            "id": f"{task.name}-{start}",
            "task": task.name,
            "prompt": task.prompt(start),
            "reference": task.answer(start),
        }


def main() -> None:
    """Writes the questions, one JSON object a line."""
    parser = argparse.ArgumentParser(description="Write the questions of number_words.")
    parser.add_argument("output", type=Path, help="the folder to write to")
    folder = parser.parse_args().output
    folder.mkdir(parents=True, exist_ok=True)
    for task in TASKS.values():
        lines = [json.dumps(question) + "\n" for question in questions(task)]
        (folder / f"{task.name}.jsonl").write_text("".join(lines))


if __name__ == "__main__":
    main()
