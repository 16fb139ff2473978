"""Generated texts of a run and the answers in them, which are read from its results one row at a time."""

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from mindbatch.evaluation.metric import FACTS, Answer, Generated
from mindbatch.tasks.evaluate.questions import Question

OutputsByQuestion = Mapping[int, tuple[Generated, ...]]
"""The generated texts, by the number of the question."""


class StoredOutputs(OutputsByQuestion):
    """The outputs of a file of results, of which only the offsets of the rows are in memory.

    num_tokens: generated tokens of all rows. num_samples: largest number of samples of a row.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offsets: dict[int, int] = {}
        self.num_tokens = self.num_samples = 0
        offset = 0
        for line in _lines(path):
            row = orjson.loads(line)
            self._offsets[int(row["key"])] = offset
            self.num_tokens += row["generated_tokens"]
            self.num_samples = max(self.num_samples, len(row["generations"]))
            offset += len(line)

    def __getitem__(self, number: int) -> tuple[Generated, ...]:
        offset = self._offsets[number]
        with self._path.open("rb") as file:
            file.seek(offset)
            row = orjson.loads(file.readline())
        return tuple(map(_generated, row["generations"]))

    def __iter__(self) -> Iterator[int]:
        return iter(self._offsets)

    def __len__(self) -> int:
        return len(self._offsets)


def _lines(path: Path) -> Iterator[bytes]:
    if path.is_file():
        with path.open("rb") as file:
            yield from file


def _generated(output: Mapping[str, Any]) -> Generated:
    facts = {name: output.get(name) for name in FACTS}
    token_ids = array("I", output.get("token_ids", ()))
    return Generated(output["text"], token_ids, output["cumulative_logprob"], facts)


class ReadAnswers(Mapping[int, tuple[Answer, ...]]):
    """Answers to every question, read out of its outputs. Without outputs, all answers are wrong."""

    def __init__(
        self,
        outputs: StoredOutputs,
        questions: Sequence[Question],
        of_output: Callable[[str], str | None],
        of_reference: Callable[[str], str | None],
    ) -> None:
        """Takes two functions that read an answer out of a text, for outputs and for references."""
        self._outputs, self._questions = outputs, questions
        self._of_output, self._of_reference = of_output, of_reference

    def __getitem__(self, number: int) -> tuple[Answer, ...]:
        if number not in range(len(self._questions)):
            raise KeyError(number)
        wanted = map(self._of_reference, self._questions[number].references)
        references = tuple(answer for answer in wanted if answer is not None)
        texts = [output.text for output in self._outputs.get(number, ())]
        answers = tuple(Answer(self._of_output(text), references) for text in texts)
        return answers or (Answer(None, references),) * self._outputs.num_samples

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self._questions)))

    def __len__(self) -> int:
        return len(self._questions)
