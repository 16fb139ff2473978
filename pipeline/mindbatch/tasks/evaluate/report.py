"""The page of an evaluation: one HTML file that needs nothing else, no script and no network."""

import json
from collections.abc import Iterator, Sequence

from markupsafe import Markup

from mindbatch.evaluation.metric import Generated
from mindbatch.evaluation.rendering import (
    Ranked,
    Scale,
    Stretch,
    page,
    ranking,
    stretches,
)
from mindbatch.evaluation.scores import MetricScores
from mindbatch.io.amounts import counted, decimal
from mindbatch.io.error_lines import as_written
from mindbatch.tasks.evaluate.questions import Question
from mindbatch.tasks.evaluate.requests import MeasuredColumn
from mindbatch.tasks.evaluate.results import (
    Evaluation,
    difference_text,
    interval_text,
    power_text,
    speed_text,
)
from mindbatch.tasks.evaluate.schema import GENERATOR

FIRST_FINDINGS = 3
"""Number of findings before the charts; the others are in a folded part."""
OPEN = 3
"""Number of questions that are shown unfolded."""
MAX_QUESTIONS = 400
"""Limit of questions on the page; samples_*.jsonl have all."""
LONGEST_TEXT = 4_000
"""Limit of characters of a prompt or an answer on the page."""


def report_page(evaluation: Evaluation) -> str:
    """Builds the whole page."""
    view = _QuestionView(evaluation)
    chosen = view.chosen()
    return page(
        "evaluation.html.j2",
        generator=GENERATOR,
        title=f"{evaluation.task}: {counted(len(evaluation.columns), 'column')} evaluated",
        evaluation=evaluation,
        findings=[*_findings(evaluation)],
        num_findings=FIRST_FINDINGS,
        charts=[*_charts(evaluation)],
        view=view,
        chosen=chosen,
        num_open=OPEN,
        settings=json.dumps(evaluation.settings, indent=2, ensure_ascii=False, default=str),
        what_was_scored=_what_was_scored(evaluation),
        counted=counted,
        cut=_cut,
        difference_text=difference_text,
        interval_text=interval_text,
        output_facts=_output_facts,
        power_text=power_text,
        speed_text=speed_text,
    )


def _charts(evaluation: Evaluation) -> Iterator[tuple[str, str, Markup]]:
    """Yields title, meaning and drawing of each metric, and of the speed if it was measured."""
    for number, scores in enumerate(evaluation.scores):
        metric = scores.metric
        toward = metric.toward or ("better" if metric.best == "high" else "likelier")
        scale = Scale(f"score-{number}", metric.title, metric.text, metric.best, toward)
        yield metric.title, metric.meaning, ranking(scale, _ranked(scores))
    timed = {name: column for name, column in evaluation.columns.items() if column.speeds}
    if timed:
        ranked = []
        for name, column in timed.items():
            interval = (min(column.speeds), max(column.speeds)) if len(column.speeds) > 1 else None
            ranked.append(Ranked(name, column.speed, interval, True))
        title = "Tokens per second"
        meaning = "Tokens returned by the wall time of all prompts; from slowest to fastest."
        yield title, meaning, ranking(Scale("speed", title, speed_text, toward="faster"), ranked)


def _ranked(scores: MetricScores) -> list[Ranked]:
    """Makes a point and an interval of each column; `leads` is False of one worse than its baseline."""
    worse = {
        name
        for name, difference in scores.differences.items()
        if difference.is_beyond_chance and not _is_better(scores, difference.value)
    }
    return [
        Ranked(name, estimate.value, estimate.interval, name not in worse)
        for name, estimate in scores.estimates.items()
    ]


def _is_better(scores: MetricScores, difference: float) -> bool:
    return (difference > 0) == (scores.metric.best == "high")


def _findings(evaluation: Evaluation) -> Iterator[str]:
    """Yields the findings in sentences: differences beyond chance, or that there are none."""
    level, unknown = list[str](), list[str]()
    for scores in evaluation.scores:
        beyond = {name: diff for name, diff in scores.differences.items() if diff.is_beyond_chance}
        for name, diff in beyond.items():
            is_better, base = _is_better(scores, diff.value), diff.base
            verdict = f"{name} is {'better' if is_better else 'worse'} than {base}"
            if toward := scores.metric.toward:
                first, second = (name, base) if is_better else (base, name)
                verdict = f"{toward} with {first} than with {second}"
            yield f"{scores.metric.title}: {verdict}: {difference_text(scores.metric, diff)}."
        if scores.differences and not beyond:
            can_tell = any(difference.adjusted is not None for difference in scores.differences.values())
            (level if can_tell else unknown).append(scores.metric.title)
    if level:
        base = evaluation.baseline or "its baseline"
        yield f"No column differs from {base} by more than noise in: {', '.join(level)}."
    if unknown:
        yield f"Too few questions to tell a difference from noise in: {', '.join(unknown)}."
    yield from (f"{sentence}." for sentence in evaluation.alike)


def _what_was_scored(evaluation: Evaluation) -> str:
    """Describes the text whose likelihood was measured; empty where there is none."""
    needs = {scores.metric.needs for scores in evaluation.scores}
    continuations = next(iter(evaluation.columns.values())).continuations
    if any(question.text is not None for question in evaluation.questions):
        return (
            "Scored: every token of a text, long texts in windows; the first one only behind a begin token."
        )
    if continuations is None:
        return ""
    answers = {"likelihood": "the first right answer", "choices": "each choice"}
    named = " and ".join(name for need, name in answers.items() if need in needs)
    joint = (
        "after one space, unless the prompt ends or the answer begins with white space; in a chat after "
        "what the chat template writes there"
        if continuations.prefix is None
        else f"after task.target_prefix={as_written(continuations.prefix)}"
    )
    return (
        f"Scored: {named}, {joint}. Prompt and answer are encoded as one text; its tokens that reach "
        "beyond the prompt's last character count."
    )


class _QuestionView:
    """The questions on the page, with the columns that answer each right or wrong."""

    def __init__(self, evaluation: Evaluation) -> None:
        self._evaluation = evaluation
        self._judges = [scores for scores in evaluation.scores if scores.metric.is_right_or_wrong]
        self._classes = [self._classes_of(number) for number in range(len(evaluation.questions))]

    def chosen(self) -> list[int]:
        """Chooses the questions of the page, by number and in order."""
        numbers = range(len(self._classes))
        ordered = sorted(numbers, key=lambda number: "disagree" not in self._classes[number])
        return sorted(ordered[:MAX_QUESTIONS])

    def filters(self, chosen: Sequence[int]) -> Iterator[tuple[str, str, int]]:
        """Yields the filters of the page: name, label and how many of the chosen questions match."""
        yield "all", "all", len(chosen)
        base = self._evaluation.baseline or "its baseline"
        labels = {
            "disagree": "columns disagree",
            "gained": f"right, where {base} is wrong",
            "lost": f"wrong, where {base} is right",
            "wrong": "wrong everywhere",
        }
        for name, label in labels.items():
            if count := sum(name in self._classes[number] for number in chosen):
                yield name, label, count

    def classes(self, number: int) -> str:
        return " ".join(self._classes[number])

    def verdict(self, name: str, number: int) -> str:
        return {None: "", True: "right", False: "wrong"}[self._is_right(name, number)]

    def facts(self, name: str, number: int) -> str:
        """Formats one line on an answer: its scores, and what was chosen, scored and read."""
        column, question = self._evaluation.columns[name], self._evaluation.questions[number]
        return " · ".join([*self._scores(name, number), *_facts(column, number, question)])

    def stretches(self, name: str, number: int, text: str) -> list[Stretch]:
        """Divides a column's text into parts that the answer of its baseline shares and others."""
        base = self._evaluation.baselines[name]
        text, other = _cut(text), _text(self._evaluation.columns[base], number)
        if name == base or other is None or not text.strip():
            return [Stretch(text or "(no text)", True)]
        return stretches(text, _cut(other))

    def _scores(self, name: str, number: int) -> Iterator[str]:
        for scores in self._evaluation.scores:
            value = scores.per_row[name].get(number)
            if value is not None and not scores.metric.is_right_or_wrong:
                yield f"{scores.metric.name} {scores.metric.text(value)}"

    def _is_right(self, name: str, number: int) -> bool | None:
        scores = (judge.per_row[name].get(number) for judge in self._judges)
        score = next((value for value in scores if value is not None), None)
        return None if score is None else score > 0.5

    def _classes_of(self, number: int) -> list[str]:
        """Lists the filters that the question matches."""
        right = {name: self._is_right(name, number) for name in self._evaluation.columns}
        if None in right.values():
            texts = {_text(column, number) for column in self._evaluation.columns.values()}
            return ["disagree"] if len(texts) > 1 else []
        changes = {(right[base], right[name]) for name, base in self._evaluation.baselines.items()}
        classes = ["disagree"] if len({*right.values()}) > 1 else []
        classes += ["gained"] if (False, True) in changes else []
        classes += ["lost"] if (True, False) in changes else []
        return classes + (["wrong"] if not any(right.values()) else [])


def _facts(column: MeasuredColumn, number: int, question: Question) -> Iterator[str]:
    """Yields what was chosen, scored and read out of the texts of a column."""
    for chosen in column.choices.get(number, ()):
        best = max(range(len(question.choices)), key=lambda choice: chosen.logprobs[choice])
        yield f"likeliest: {_cut(question.choices[best].strip())} ({decimal(chosen.logprobs[best], '.2f')})"
    if question.text is None:
        for scored in column.likelihood.get(number, ()):
            text = column.scored_text(question, question.references[0])
            yield f"scored: {counted(scored.num_tokens, 'token')} of {as_written(_cut(text))}"
    answers = [answer.text for answer in column.generation.get(number, ())]
    texts = [output.text.strip() for output in column.outputs.get(number, ())]
    if answers and answers != texts:
        read = [_cut(answer) if answer is not None else "none found" for answer in answers]
        yield f"{'answer' if len(read) == 1 else 'answers'}: {' | '.join(read)}"


def _text(column: MeasuredColumn, number: int) -> str | None:
    return next((output.text for output in column.outputs.get(number, ())), None)


def _output_facts(output: Generated) -> str:
    """Formats the known facts of a generated text as one line."""
    facts = [f"#{output.facts['rank']}"] if output.facts.get("rank") is not None else []
    count = len(output.token_ids)
    if count:
        facts += [f"log-prob {decimal(output.logprob, '.1f')}", counted(count, "token")]
    if output.facts.get("score") is not None:
        facts.append(f"score {decimal(output.facts['score'], '.3f')}")
    ends = {"stop": "ended by itself", "length": "cut at its limit"}
    return " · ".join([*facts, *filter(None, [ends.get(output.facts.get("finish_reason", ""))])])


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}… ({len(text):,} characters)"
