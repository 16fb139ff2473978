"""Results of an evaluation and their files: results.json, and those that lm-evaluation-harness has, too."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson

from mindbatch.evaluation.metric import Generated
from mindbatch.evaluation.scores import Difference, MetricScores, smallest_difference
from mindbatch.io.storage import make_folder, write_whole
from mindbatch.tasks.evaluate.columns import Column
from mindbatch.tasks.evaluate.measured import MeasuredColumn
from mindbatch.tasks.evaluate.questions import Question
from mindbatch.tasks.evaluate.schema import RESULTS


@dataclass(frozen=True)
class Evaluation:
    """All of an evaluation. columns, measured: in one order. settings: plain JSON, secrets as written."""

    task: str
    created: str
    questions: Sequence[Question]
    columns: Sequence[Column]
    measured: Mapping[str, MeasuredColumn]
    baseline: str
    scores: Sequence[MetricScores]
    few_shot: int
    settings: Mapping[str, Any]
    how_timed: str = ""

    @property
    def alike(self) -> list[list[str]]:
        """The names of columns that generated the same for every question, in groups of two and more."""
        groups: dict[Any, list[str]] = {}
        for name, column in self.measured.items():
            texts = tuple(
                (key, *(output.text for output in column.outputs[key])) for key in sorted(column.outputs)
            )
            groups.setdefault(texts, []).append(name)
        return [names for texts, names in groups.items() if texts and len(names) > 1]

    @property
    def num_errors(self) -> int:
        """Rows that could not be run, in all columns."""
        return sum(len(column.errors) for column in self.measured.values())


def as_json(evaluation: Evaluation) -> dict[str, Any]:
    """results.json: the scores of every column, its differences from the baseline, and the settings."""
    return {
        "task": evaluation.task,
        "created": evaluation.created,
        "questions": len(evaluation.questions),
        "baseline": evaluation.baseline,
        "columns": {column.name: _column(evaluation, column) for column in evaluation.columns},
        "settings": evaluation.settings,
    }


def _column(evaluation: Evaluation, column: Column) -> dict[str, Any]:
    measured = evaluation.measured[column.name]
    return {
        "folder": f"columns/{column.folder}",
        "checkpoint": column.checkpoint,
        "adapter": column.adapter,
        "decoding": column.decoding,
        "results": harness_scores(evaluation, column.name),
        "intervals": {
            scores.metric.name: _listed(scores.estimates[column.name].interval)
            for scores in evaluation.scores
        },
        "rows": {scores.metric.name: scores.estimates[column.name].num_rows for scores in evaluation.scores},
        "differences": {
            scores.metric.name: _difference(scores.differences[column.name])
            for scores in evaluation.scores
            if column.name in scores.differences
        },
        "generated_tokens": measured.num_tokens,
        "tokens_per_second": [*measured.speeds],
        "errors": len(measured.errors),
    }


def harness_scores(evaluation: Evaluation, column: str) -> dict[str, Any]:
    """The scores by the names that lm-evaluation-harness gives them: `acc,none`, `acc_stderr,none`."""
    results: dict[str, Any] = {"alias": evaluation.task}
    for scores in evaluation.scores:
        estimate = scores.estimates[column]
        results[f"{scores.metric.name},none"] = _number(estimate.value)
        results[f"{scores.metric.name}_stderr,none"] = "N/A" if estimate.stderr is None else estimate.stderr
    return results


def _difference(difference: Difference) -> dict[str, Any]:
    return {
        "value": _number(difference.value),
        "interval": _listed(difference.interval),
        "test": difference.test,
        "p_value": difference.p_value,
        "p_value_adjusted": difference.adjusted,
        "beyond_chance": difference.is_beyond_chance,
        "gained": difference.gained,
        "lost": difference.lost,
        "smallest_found": None if not difference.stderr else smallest_difference(difference.stderr),
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _listed(interval: Sequence[float] | None) -> list[float] | None:
    return None if interval is None else [*interval]


def write_results(evaluation: Evaluation, folder: Path, *, samples: bool) -> list[Path]:
    """Writes results.json, and for each column results.json and samples as lm-evaluation-harness has them.

    Raises:
        StorageError: a file cannot be written.
    """
    written = [_written(folder / RESULTS, as_json(evaluation))]
    for column in evaluation.columns:
        home = folder / "columns" / column.folder
        make_folder(home)
        _written(home / RESULTS, _harness(evaluation, column))
        if samples:
            lines = b"".join(
                orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in _samples(evaluation, column)
            )
            write_whole(home / f"samples_{evaluation.task}.jsonl", lines)
    return written


def _written(path: Path, content: Mapping[str, Any]) -> Path:
    write_whole(path, orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    return path


def _harness(evaluation: Evaluation, column: Column) -> dict[str, Any]:
    task, count = evaluation.task, len(evaluation.questions)
    return {
        "results": {task: harness_scores(evaluation, column.name)},
        "group_subtasks": {task: []},
        "configs": {task: {"task": task, "num_fewshot": evaluation.few_shot, "metadata": {"version": 1.0}}},
        "versions": {task: 1.0},
        "n-shot": {task: evaluation.few_shot},
        "higher_is_better": {task: {e.metric.name: e.metric.best == "high" for e in evaluation.scores}},
        "n-samples": {task: {"original": count, "effective": count}},
        "config": {"model": "mindbatch", "model_args": {"column": column.name}, "limit": None},
        "date": evaluation.created,
        "task_hashes": {},
    }


def _samples(evaluation: Evaluation, column: Column) -> Iterator[dict[str, Any]]:
    """A line for each question: what was asked, what came, and its scores."""
    measured = evaluation.measured[column.name]
    for number, question in enumerate(evaluation.questions):
        prompt = question.content.get("text") or orjson.dumps(dict(question.content)).decode()
        target = question.choices[question.correct] if question.choices else [*question.references]
        every = {scored.metric.name: scored.of_row(column.name, number) for scored in evaluation.scores}
        scores = {name: score for name, score in every.items() if score is not None}
        outputs = measured.outputs.get(number, ())
        chosen = measured.choices.get(number)
        yield {
            "doc_id": number,
            "doc": {"key": question.key, "source": question.place},
            "target": target,
            "arguments": _arguments(measured, question, prompt),
            "resps": [
                [output.text for output in outputs] if outputs else [*(chosen.logprobs if chosen else ())]
            ],
            "filtered_resps": [answer.text for answer in measured.generation.get(number, ())] or [None],
            "outputs": [_output(output) for output in outputs if output.token_ids],
            "filter": "none",
            "metrics": [*scores],
            "error": measured.errors.get(number),
            "doc_hash": _hash(question.place),
            "prompt_hash": _hash(prompt),
            "target_hash": _hash(str(target)),
        } | scores


def _output(output: Generated) -> dict[str, Any]:
    return {"token_ids": [*output.token_ids], "logprob": _number(output.logprob), **output.facts}


def _arguments(measured: MeasuredColumn, question: Question, prompt: str) -> dict[str, dict[str, str]]:
    """The prompt of each request, and the text whose likelihood was measured behind it."""
    answers = question.choices or question.references[:1]
    if measured.continuations is None or question.text is not None:
        return {"gen_args_0": {"arg_0": prompt}}
    texts = [measured.scored_text(question, answer) for answer in answers]
    return {f"gen_args_{place}": {"arg_0": prompt, "arg_1": text} for place, text in enumerate(texts)}


def _hash(text: str) -> str:
    return sha256(text.encode()).hexdigest()
