"""From the results of a column's runs to what the metrics measure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from mindbatch.evaluation.scoring.extraction import EXTRACTIONS, Extraction, pattern_extraction
from mindbatch.evaluation.scoring.metric import Answer, ChoiceScores, TextLikelihood
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.tasks.evaluate.continuation import Continuations
from mindbatch.tasks.evaluate.matrix_run import CHOICES, GENERATION, LIKELIHOOD, ColumnRuns
from mindbatch.tasks.evaluate.questions import Question
from mindbatch.tasks.evaluate.schema import AnswerConfig


@dataclass(frozen=True)
class Scored:
    """Log-probability and number of a request's last tokens."""

    logprob: float
    num_tokens: int


@dataclass
class MeasuredColumn:
    """Inputs of each metric for one column, by the number of the question; errors by the same.

    texts: the outputs as they came. num_tokens: generated; None: not known. continuations: of the prompts,
    where they were scored.
    """

    generation: dict[int, Answer] = field(default_factory=dict)
    choices: dict[int, ChoiceScores] = field(default_factory=dict)
    likelihood: dict[int, TextLikelihood] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    num_tokens: int | None = 0
    errors: dict[int, str] = field(default_factory=dict)
    continuations: Continuations | None = None

    def of(self, needs: str) -> Mapping[int, Any]:
        """Selects the inputs of a metric with these `needs`, by the number of the question."""
        found: Mapping[int, Any] = getattr(self, needs)
        return found

    def scored_text(self, question: Question, answer: str = "") -> str:
        """The text that was scored: an answer with what stands before it, or the question's text."""
        if question.text is not None:
            return question.text
        assert self.continuations is not None
        return self.continuations.text(question.content, answer)


def extraction_of(task: AnswerConfig) -> Extraction:
    if task.extract_pattern is not None:
        return pattern_extraction(task.extract_pattern)
    return EXTRACTIONS[task.extract]


def measured(runs: ColumnRuns, task: AnswerConfig, questions: Sequence[Question]) -> MeasuredColumn:
    """Reads the results of a column.

    A row that could not be run is an error, and its answer a wrong one where any row could be run.
    """
    column = MeasuredColumn(continuations=runs.continuations)
    if GENERATION in runs.folders:
        _read_generation(runs.folders[GENERATION], extraction_of(task), questions, column)
    for kind in (CHOICES, LIKELIHOOD):
        if kind in runs.folders:
            found = _read_scored(runs.folders[kind], column)
            for number, parts in found.items():
                _take(kind, column, questions[number], number, parts)
    return column


def _read_generation(
    folder: RunFolder, extraction: Extraction, questions: Sequence[Question], column: MeasuredColumn
) -> None:
    num_tokens = 0
    for line in _lines(folder, column):
        number = int(line["key"])
        column.texts[number] = line["generations"][0]["text"]
        num_tokens += line["generated_tokens"]
    column.num_tokens = num_tokens
    if not column.texts:
        return
    for number, question in enumerate(questions):
        wanted = (extraction.of_reference(each) for each in question.references)
        references = tuple(each for each in wanted if each is not None)
        text = column.texts.get(number)
        column.generation[number] = Answer(None if text is None else extraction.of_output(text), references)


def _read_scored(folder: RunFolder, column: MeasuredColumn) -> dict[int, dict[int, Scored]]:
    """By question and part of it, of the questions all of whose parts were scored."""
    found: dict[int, dict[int, Scored]] = defaultdict(dict)
    for line in _lines(folder, column):
        number, part = map(int, line["key"].split("."))
        found[number][part] = _scored(line)
    return {number: parts for number, parts in found.items() if number not in column.errors}


def _scored(line: Mapping[str, Any]) -> Scored:
    likely = line["prompt_logprobs"]
    tokens = line["prompt"][-len(likely) :]
    chosen = [each[str(token)] for token, each in zip(tokens, likely, strict=True)]
    return Scored(sum(chosen), len(chosen))


def _take(
    kind: str,
    column: MeasuredColumn,
    question: Question,
    number: int,
    parts: Mapping[int, Scored],
) -> None:
    if kind == CHOICES:
        logprobs = tuple(parts[place].logprob for place in range(len(question.choices)))
        lengths = tuple(len(column.scored_text(question, text).encode()) for text in question.choices)
        column.choices[number] = ChoiceScores(logprobs, lengths, question.correct)
        return
    text = column.scored_text(question, *question.references[:1])
    column.likelihood[number] = TextLikelihood(
        logprob=sum(part.logprob for part in parts.values()),
        num_tokens=sum(part.num_tokens for part in parts.values()),
        num_words=len(text.split()),
        num_bytes=len(text.encode()),
    )


def _lines(folder: RunFolder, column: MeasuredColumn) -> list[dict[str, Any]]:
    """The results of a run; its errors go to the column."""
    for failure in _json_lines(folder.errors):
        column.errors[int(failure["key"].partition(".")[0])] = failure["reason"]
    return _json_lines(folder.results("jsonl"))


def _json_lines(path: Any) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()] if path.is_file() else []
