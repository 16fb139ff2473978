"""The page of an evaluation: one HTML file that needs nothing else, no script and no network."""

import json
from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median
from typing import Any

from markupsafe import Markup

from mindbatch.evaluation.metric import Generated
from mindbatch.evaluation.rendering import (
    TEMPLATES,
    Ranked,
    Scale,
    Stretch,
    content_policy,
    ranking,
    rendered,
    stretches,
)
from mindbatch.evaluation.scores import MetricScores
from mindbatch.io.amounts import counted, decimal
from mindbatch.io.fault_lines import as_written
from mindbatch.tasks.evaluate.results import Evaluation
from mindbatch.tasks.evaluate.schema import GENERATOR
from mindbatch.tasks.evaluate.table import (
    difference_text,
    interval_text,
    power_text,
    score_text,
    speed_text,
)

OPEN = 3
"""Questions that are shown unfolded."""
MOST_QUESTIONS = 400
"""Questions with their answers on the page; samples_*.jsonl have all."""
LONGEST_TEXT = 4_000
"""Characters of a prompt or an answer on the page."""


def report_page(evaluation: Evaluation) -> str:
    """The whole page. Its policy lets the browser load and run nothing, and take only this style sheet."""
    sheets = ("style.css", "evaluation.css")
    style = "".join("\n" + (TEMPLATES / name).read_text(encoding="utf-8") for name in sheets)
    shown = _QuestionView(evaluation)
    chosen = shown.chosen()
    moment = f"{evaluation.created[:16].replace('T', ' ')} UTC"
    filled = rendered(
        "evaluation.html.j2",
        generator=GENERATOR,
        policy=content_policy(style),
        style=Markup(style),
        title=f"{evaluation.task}: {counted(len(evaluation.columns), 'column')} evaluated",
        facts=f"{counted(len(evaluation.questions), 'question')} · {moment}",
        findings=[*_findings(evaluation)],
        faults=[*_faults(evaluation)],
        charts=[*_charts(evaluation)],
        baseline=evaluation.baseline,
        differences=[*_differences(evaluation)],
        difference_headings=["column", "measure", "difference", "95%", "gained", "lost"],
        filters=shown.filters(chosen),
        left_out=_left_out(len(evaluation.questions), len(chosen)),
        num_open=OPEN,
        questions=[shown.question(number) for number in chosen],
        column_headings=[
            "column",
            "checkpoint",
            "adapter",
            "decoding",
            "tokens generated",
            "tokens/s",
            "errors",
        ],
        columns=[
            [
                column.name,
                column.checkpoint,
                column.adapter or "",
                column.decoding,
                "-" if measured.num_tokens is None else f"{measured.num_tokens:,}",
                speed_text(median(measured.speeds) if measured.speeds else None),
                str(len(measured.errors)),
            ]
            for column, measured in zip(evaluation.columns, evaluation.measured.values(), strict=True)
        ],
        settings=json.dumps(evaluation.settings, indent=2, ensure_ascii=False, default=str),
        notes=[*_notes(evaluation)],
    )
    return str(filled)


def _charts(evaluation: Evaluation) -> Iterator[tuple[str, str, Markup]]:
    """Title, meaning and drawing of each metric, and of the speed where that was measured."""
    for number, scores in enumerate(evaluation.scores):
        metric = scores.metric
        meaning = (type(metric).__doc__ or "").strip().splitlines()[0]
        toward = metric.toward or ("better" if metric.best == "high" else "likelier")
        written = partial(_written, scores)
        scale = Scale(f"score-{number}", metric.title, written, metric.best, toward)
        yield metric.title, meaning, _chart(evaluation, scores, scale)
    timed = {name: measured.speeds for name, measured in evaluation.measured.items() if measured.speeds}
    if timed:
        ranked = [
            Ranked(name, median(speeds), (min(speeds), max(speeds)) if len(speeds) > 1 else None, True)
            for name, speeds in timed.items()
        ]
        title, meaning = (
            "Tokens per second",
            "Tokens returned by the wall time of all prompts; from slowest to fastest.",
        )
        yield title, meaning, ranking(Scale("speed", title, speed_text, toward="faster"), ranked)


def _written(scores: MetricScores, value: float | None) -> str:
    return "-" if value is None else score_text(scores.metric, value)


def _chart(evaluation: Evaluation, scores: MetricScores, scale: Scale) -> Markup:
    """A point and an interval for each column; empty where it is worse than the baseline beyond chance."""
    sign = 1.0 if scale.best == "high" else -1.0
    worse = {
        name
        for name, difference in scores.differences.items()
        if difference.is_beyond_chance and sign * difference.value < 0
    }
    estimates = scores.estimates
    return ranking(
        scale,
        [
            Ranked(
                column.name,
                estimates[column.name].value,
                estimates[column.name].interval,
                column.name not in worse,
            )
            for column in evaluation.columns
        ],
    )


def _findings(evaluation: Evaluation) -> Iterator[str]:
    """Yields the findings in sentences: differences beyond chance, or that there are none."""
    base, level = evaluation.baseline, []
    for scores in evaluation.scores:
        beyond = {name: diff for name, diff in scores.differences.items() if diff.is_beyond_chance}
        for name, diff in beyond.items():
            is_better = (diff.value > 0) == (scores.metric.best == "high")
            verdict = f"{name} is {'better' if is_better else 'worse'} than {base}"
            if toward := scores.metric.toward:
                first, second = (name, base) if is_better else (base, name)
                verdict = f"{toward} with {first} than with {second}"
            yield f"{scores.metric.title}: {verdict}: {difference_text(scores.metric, diff)}."
        level += [scores.metric.title] if scores.differences and not beyond else []
    if level:
        yield f"No column differs from {base} by more than noise in: {', '.join(level)}."
    for names in evaluation.alike:
        yield f"{', '.join(names[:-1])} and {names[-1]} generated the same texts throughout."


def _faults(evaluation: Evaluation) -> Iterator[str]:
    for name, column in evaluation.measured.items():
        if column.errors:
            yield f"{name}: {counted(len(column.errors), 'question')} could not be run"


def _differences(evaluation: Evaluation) -> Iterator[list[str]]:
    for scores in evaluation.scores:
        for name, compared in scores.differences.items():
            ends = [score_text(scores.metric, end, "+") for end in compared.interval or ()]
            changed = ["", ""] if compared.gained is None else [str(compared.gained), str(compared.lost)]
            difference = difference_text(scores.metric, compared)
            yield [name, scores.metric.title, difference, " to ".join(ends), *changed]


def _left_out(count: int, shown: int) -> str:
    if count == shown:
        return ""
    return f"{shown} of {count:,} questions, those on which columns disagree first; samples_*.jsonl have all."


def _notes(evaluation: Evaluation) -> Iterator[str]:
    yield (
        "Intervals hold 95 of 100 resamples of the questions (bootstrap); questions of one cluster are drawn "
        "together."
    )
    yield (
        "Differences are paired, question by question: shares of right answers by McNemar's exact test, all "
        "else by the paired bootstrap. p is of no difference, after Holm's correction for the number of "
        "columns; a difference with p of 0.05 or more is called noise."
    )
    yield (
        "Several samples of a question count as one question. Questions needed for a difference: those with "
        "which a two-sided test at 5% finds it in 80% of evaluations (Miller 2024)."
    )
    yield from _what_was_scored(evaluation)
    yield from filter(None, [evaluation.how_timed])
    if len(evaluation.columns) > 1:
        yield f"An empty point is worse than {evaluation.baseline} by more than noise."
    for scores in evaluation.scores:
        name, metric = scores.metric.title, scores.metric
        values = ", ".join(
            f"{column} {score_text(metric, estimate.value)}"
            + (f" ({interval_text(metric, estimate)})" if estimate.interval else "")
            for column, estimate in scores.estimates.items()
        )
        yield f"{name}, over {counted(len(scores.rows), 'question')}: {values}."
        if power := power_text(scores):
            yield f"{power}."


def _what_was_scored(evaluation: Evaluation) -> Iterator[str]:
    """The text that likelihoods are those of."""
    needs = {scores.metric.needs for scores in evaluation.scores}
    continuations = evaluation.measured[evaluation.baseline].continuations
    if any(question.text is not None for question in evaluation.questions):
        yield "Scored: every token of a text, long texts in windows; the first one only behind a begin token."
    elif continuations is not None:
        answers = {"likelihood": "the first right answer", "choices": "each choice"}
        named = " and ".join(name for need, name in answers.items() if need in needs)
        joint = (
            "after one space, unless the prompt ends or the answer begins with white space; in a chat after "
            "what the chat template writes there"
            if continuations.prefix is None
            else f"after task.target_prefix={as_written(continuations.prefix)}"
        )
        yield (
            f"Scored: {named}, {joint}. Prompt and answer are encoded as one text; its tokens that reach "
            "beyond the prompt's last character count."
        )


class _QuestionView:
    """The questions as the page shows them: whose answers are right, and where columns disagree."""

    def __init__(self, evaluation: Evaluation) -> None:
        self._evaluation = evaluation
        self._judges = [scores for scores in evaluation.scores if scores.metric.is_right_or_wrong]

    def chosen(self) -> list[int]:
        """The numbers of the questions on the page, in order."""
        numbers = range(len(self._evaluation.questions))
        ordered = sorted(numbers, key=lambda number: "disagree" not in self._classes(number))
        return sorted(ordered[:MOST_QUESTIONS])

    def filters(self, chosen: Sequence[int]) -> list[dict[str, object]]:
        """Lists the filters of the page, each with how many of the chosen questions it has."""
        labels = {
            "disagree": "columns disagree",
            "gained": f"right, where {self._evaluation.baseline} is wrong",
            "lost": f"wrong, where {self._evaluation.baseline} is right",
            "wrong": "wrong everywhere",
        }
        filters: list[dict[str, object]] = [{"id": "all", "label": "all", "count": len(chosen)}]
        for name, label in labels.items():
            count = sum(name in self._classes(number) for number in chosen)
            if count:
                filters.append({"id": name, "label": label, "count": count})
        return filters

    def question(self, number: int) -> dict[str, object]:
        """One question with a card for each column."""
        question = self._evaluation.questions[number]
        target = question.choices[question.correct] if question.choices else " | ".join(question.references)
        return {
            "number": number + 1,
            "classes": " ".join(self._classes(number)),
            "prompt": _cut(_prompt_text(question.content, question.text)),
            "target": _cut(target),
            "cards": [self._card(column.name, number) for column in self._evaluation.columns],
        }

    def _card(self, column: str, number: int) -> dict[str, object]:
        measured = self._evaluation.measured[column]
        outputs = measured.outputs.get(number, ())
        return {
            "name": column,
            "verdict": {None: "", True: "right", False: "wrong"}[self._is_right(column, number)],
            "facts": " · ".join(self._facts(column, number)),
            "error": measured.errors.get(number, ""),
            "outputs": [
                {
                    "facts": _output_facts(output),
                    "stretches": self._stretches(column, number, _cut(output.text)),
                }
                for output in outputs
            ],
        }

    def _stretches(self, column: str, number: int, text: str) -> list[Stretch]:
        other = self._evaluation.measured[self._evaluation.baseline].text(number)
        if column == self._evaluation.baseline or other is None or not text.strip():
            return [Stretch(text or "(no text)", True)]
        return [*stretches(text, _cut(other))]

    def _facts(self, column: str, number: int) -> Iterator[str]:
        evaluation, measured = self._evaluation, self._evaluation.measured[column]
        for scores in evaluation.scores:
            value = scores.of_row(column, number)
            if value is not None and not scores.metric.is_right_or_wrong:
                yield f"{scores.metric.name} {score_text(scores.metric, value)}"
        chosen = measured.choices.get(number)
        if chosen is not None:
            choices = evaluation.questions[number].choices
            best = max(range(len(choices)), key=lambda place: chosen.logprobs[place])
            yield f"likeliest: {_cut(choices[best].strip())} ({decimal(chosen.logprobs[best], '.2f')})"
        scored = measured.likelihood.get(number)
        if scored is not None and evaluation.questions[number].text is None:
            text = measured.scored_text(
                evaluation.questions[number], evaluation.questions[number].references[0]
            )
            yield f"scored: {counted(scored.num_tokens, 'token')} of {as_written(_cut(text))}"
        answers = [answer.text for answer in measured.generation.get(number, ())]
        texts = [output.text.strip() for output in measured.outputs.get(number, ())]
        if answers and answers != texts:
            read = [_cut(answer) if answer is not None else "none found" for answer in answers]
            yield f"{'answer' if len(read) == 1 else 'answers'}: {' | '.join(read)}"

    def _is_right(self, column: str, number: int) -> bool | None:
        scores = (judge.of_row(column, number) for judge in self._judges)
        score = next((value for value in scores if value is not None), None)
        return None if score is None else score > 0.5

    def _classes(self, number: int) -> list[str]:
        """Lists the filters that the question matches."""
        base = self._is_right(self._evaluation.baseline, number)
        if base is None:
            texts = {measured.text(number) for measured in self._evaluation.measured.values()}
            return ["disagree"] if len(texts) > 1 else []
        right = [self._is_right(column.name, number) for column in self._evaluation.columns]
        classes = ["disagree"] if len({*right}) > 1 else []
        classes += ["gained"] if not base and any(right) else []
        classes += ["lost"] if base and not all(right) else []
        return classes + (["wrong"] if not any(right) else [])


def _output_facts(output: Generated) -> str:
    """One line about a generated text, of what is known."""
    facts = [f"#{output.facts['rank']}"] if output.facts.get("rank") is not None else []
    count = len(output.token_ids)
    if count:
        facts += [f"log-prob {decimal(output.logprob, '.1f')}", counted(count, "token")]
    if output.facts.get("score") is not None:
        facts.append(f"score {decimal(output.facts['score'], '.3f')}")
    ends = {"stop": "ended by itself", "length": "cut at its limit"}
    return " · ".join([*facts, *filter(None, [ends.get(output.facts.get("finish_reason", ""))])])


def _prompt_text(content: Any, text: str | None) -> str:
    if text is not None:
        return text
    return content.get("text") or json.dumps(dict(content), ensure_ascii=False)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}… ({len(text):,} characters)"
