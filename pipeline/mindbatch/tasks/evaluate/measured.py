"""From the results of a column's runs to what the metrics measure."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from mindbatch.evaluation.extraction import EXTRACTIONS, Extraction, pattern_extraction, whole
from mindbatch.evaluation.metric import Answer, ChoiceScores, Generated, Row, TextLikelihood
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.tasks.evaluate.continuation import Continuations
from mindbatch.tasks.evaluate.matrix_run import ColumnRuns
from mindbatch.tasks.evaluate.questions import Question
from mindbatch.tasks.evaluate.requests import CHOICES, GENERATION, LIKELIHOOD
from mindbatch.tasks.evaluate.task_schema import AnswerConfig


@dataclass(frozen=True)
class Scored:
    """Log-probability and number of a request's last tokens."""

    logprob: float
    num_tokens: int


@dataclass
class MeasuredColumn:
    """Inputs of each metric for one column, by the number of the question; errors by the same.

    outputs: the texts as they came, and generation: what was read out of them, each of as many samples.
    num_tokens: generated; None: not known. speeds: tokens/s of each time that the column was timed.
    continuations: of the prompts, where they were scored.
    """

    outputs: dict[int, tuple[Generated, ...]] = field(default_factory=dict)
    generation: dict[int, tuple[Answer, ...]] = field(default_factory=dict)
    choices: dict[int, ChoiceScores] = field(default_factory=dict)
    likelihood: dict[int, TextLikelihood] = field(default_factory=dict)
    num_tokens: int | None = 0
    speeds: Sequence[float] = ()
    errors: dict[int, str] = field(default_factory=dict)
    continuations: Continuations | None = None

    def of(self, needs: str) -> Mapping[int, Row]:
        """Selects the inputs of a metric with these `needs`, by the number of the question."""
        inputs: Mapping[int, Any] = getattr(self, needs)
        has_samples = needs in ("outputs", "generation")
        return inputs if has_samples else {number: (item,) for number, item in inputs.items()}

    def text(self, number: int) -> str | None:
        """The first text generated for a question."""
        outputs = self.outputs.get(number)
        return outputs[0].text if outputs else None

    def scored_text(self, question: Question, answer: str = "") -> str:
        """The text that was scored: an answer with what stands before it, or the question's text."""
        if question.text is not None:
            return question.text
        assert self.continuations is not None
        return self.continuations.text(question.content, answer)


def extractions_of(task: AnswerConfig) -> tuple[Extraction, Extraction]:
    """Selects the extraction from an output and that from a reference, which no pattern searches."""
    if task.extract_pattern is not None:
        return pattern_extraction(task.extract_pattern), whole
    return EXTRACTIONS[task.extract], EXTRACTIONS[task.extract]


def measured(runs: ColumnRuns, task: AnswerConfig, questions: Sequence[Question]) -> MeasuredColumn:
    """Reads the results of a column.

    A row that could not be run is an error, and its answer a wrong one where any row could be run.
    """
    column = MeasuredColumn(continuations=runs.continuations)
    if GENERATION in runs.folders:
        _read_generation(runs.folders[GENERATION], task, questions, column)
    for kind in (CHOICES, LIKELIHOOD):
        if kind in runs.folders:
            scored = _read_scored(runs.folders[kind], column)
            for number, parts in scored.items():
                _take(kind, column, questions[number], number, parts)
    return column


def _read_generation(
    folder: RunFolder, task: AnswerConfig, questions: Sequence[Question], column: MeasuredColumn
) -> None:
    num_tokens = 0
    for line in _lines(folder, column):
        column.outputs[int(line["key"])] = tuple(map(_generated, line["generations"]))
        num_tokens += line["generated_tokens"]
    column.num_tokens = num_tokens
    if not column.outputs:
        return
    of_output, of_reference = extractions_of(task)
    num_samples = max(map(len, column.outputs.values()))
    for number, question in enumerate(questions):
        wanted = (of_reference(reference) for reference in question.references)
        references = tuple(answer for answer in wanted if answer is not None)
        texts = [output.text for output in column.outputs.get(number, ())]
        answers = [Answer(of_output(text), references) for text in texts]
        column.generation[number] = tuple(answers) or (Answer(None, references),) * num_samples


def _generated(line: Mapping[str, Any]) -> Generated:
    facts = {name: line[name] for name in ("finish_reason", "score", "rank") if line.get(name) is not None}
    return Generated(line["text"], line.get("token_ids", ()), line["cumulative_logprob"], facts)


def _read_scored(folder: RunFolder, column: MeasuredColumn) -> dict[int, dict[int, Scored]]:
    """By question and part of it, of the questions all of whose parts were scored."""
    scored: dict[int, dict[int, Scored]] = defaultdict(dict)
    for line in _lines(folder, column):
        number, part = map(int, line["key"].split("."))
        scored[number][part] = _scored(line)
    return {number: parts for number, parts in scored.items() if number not in column.errors}


def _scored(line: Mapping[str, Any]) -> Scored:
    likely = line["prompt_logprobs"]
    tokens = line["prompt"][-len(likely) :]
    chosen = [logprobs[str(token)] for token, logprobs in zip(tokens, likely, strict=True)]
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
