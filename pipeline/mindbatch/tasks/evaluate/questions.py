"""The rows of a task as questions: what is asked, what is right, and what else must be scored."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from mindbatch.config.machine import parse_bytes
from mindbatch.dataset.column_rows import from_text
from mindbatch.dataset.data_config import DataConfig
from mindbatch.dataset.dataset import MOST_LOOKED_AT, Dataset
from mindbatch.dataset.rows import DataRow, RowFailure, RowMaker
from mindbatch.decoding import DecodingParams
from mindbatch.evaluation import metric_of
from mindbatch.evaluation.answers import instruction
from mindbatch.io.errors import ConfigError
from mindbatch.io.fault_lines import did_you_mean, shown
from mindbatch.io.storage import TemporaryFolder
from mindbatch.run.index import RowIndex
from mindbatch.run.result_rows import columns_of
from mindbatch.run.survey import selection_of, survey
from mindbatch.tasks.evaluate.continuation import Examples, text_joint
from mindbatch.tasks.evaluate.schema import EvaluateConfig

USUAL_REFERENCES = ("reference", "references", "answer", "target")
USUAL_CORRECT = "answer"
INSTRUCTED = ("prompt_level_strict_acc", "inst_level_strict_acc")
MOST_FAULTS = 5
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Question:
    """A row of the task.

    content: of the prompt, as `Prompt` takes it; empty of a text that is scored as a whole.
    references: right answers. choices, correct: continuations, and which is the right one. text: scored as a
    whole. cluster: rows that belong together have the same.
    """

    key: str
    place: str
    content: Mapping[str, Any]
    references: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    correct: int = 0
    text: str | None = None
    cluster: str | None = None


def needed(names: Sequence[str]) -> set[str]:
    """Collects the inputs that the metrics need: generation, choices, likelihood."""
    return {metric_of(name).needs for name in names}


def read_questions(config: EvaluateConfig) -> list[Question]:
    """The questions of the data, in its order.

    Raises:
        ConfigError: a column that is not there, or rows that cannot be used, the first few of them: a score
            over some rows of a task would not be the task's.
    """
    names = _column_names(config, _first_columns(config.data))
    reader = _QuestionReader(config, names, _examples(config, names))
    questions: list[Question] = []
    faults: list[str] = []
    for row in _rows(config.rows_data, names.all):
        if isinstance(row, RowFailure):
            faults.append(f"{row.place}: {row.reason}")
            continue
        try:
            questions.append(reader.read(row))
        except ValueError as error:
            faults.append(f"{row.source}:{row.line}: {error}")
    if faults:
        more = [f"and {len(faults) - MOST_FAULTS} more rows"] if len(faults) > MOST_FAULTS else []
        raise ConfigError([*faults[:MOST_FAULTS], *more])
    return questions


@dataclass(frozen=True)
class _ColumnNames:
    """The columns that the task reads; None where it does not."""

    reference: str | None
    choices: str | None
    correct: str | None
    cluster: str | None
    instructions: str | None
    arguments: str | None

    @property
    def all(self) -> list[str]:
        right = (self.reference, self.choices, self.correct, self.instructions, self.arguments)
        names = (*right, self.cluster)
        return [*dict.fromkeys(name for name in names if name is not None)]


def _column_names(config: EvaluateConfig, columns: Collection[str]) -> _ColumnNames:
    """Raises ConfigError for each column that the first row has not."""
    task, needs, faults = config.task, needed(config.metric_names), list[str]()

    def named(key: str, column: str | None, usual: Sequence[str] = ()) -> str | None:
        name = column or next((usual_name for usual_name in usual if usual_name in columns), None)
        if name is None and usual:
            hint = f"must be given, for the data has no column {' or '.join(usual)}"
            faults.append(f"task.{key}: {hint}; it has {', '.join(columns)}")
        elif name is not None and name not in columns:
            near = did_you_mean(name, columns)
            faults.append(
                f"task.{key}={shown(name)}: no column of the data, which has {', '.join(columns)}{near}"
            )
        return name

    answered = task.text_column is None and needs & {"generation", "likelihood"}  # not what needs no answer
    follows = task.instructions_column is not None
    instructed = {*INSTRUCTED} & {*config.metric_names}
    if follows != bool(instructed) or (follows and len(instructed) < len(config.metric_names)):
        faults.append(
            f"task.instructions_column: goes with the metrics {' and '.join(INSTRUCTED)}, and no others"
        )
    of_choices = "choices" in needs
    if of_choices and task.choices is None:
        faults.append(
            "task.choices: must be given for acc and acc_norm: a list of texts, or the column of one"
        )
    names = _ColumnNames(
        reference=named("reference_column", task.reference_column, USUAL_REFERENCES)
        if answered and not follows
        else None,
        choices=named("choices", task.choices) if of_choices and isinstance(task.choices, str) else None,
        correct=named("correct_column", task.correct_column, [USUAL_CORRECT]) if of_choices else None,
        cluster=named("cluster_column", task.cluster_column),
        instructions=named("instructions_column", task.instructions_column),
        arguments=named("arguments_column", task.arguments_column),
    )
    named("text_column", task.text_column)
    if task.text_column is not None and needs != {"likelihood"}:
        faults.append(
            "task.text_column: a text as a whole has a likelihood only; use perplexity metrics alone"
        )
    if faults:
        raise ConfigError(faults)
    return names


def _first_columns(data: DataConfig) -> list[str]:
    dataset = Dataset(data.path or "", data.format, parse_bytes(data.max_line_bytes))
    first = None
    for first in islice(dataset.records(), MOST_LOOKED_AT):
        if first.columns is not None:
            return [*first.columns]
    if first is None:
        raise ConfigError(f"data.path: {data.path}: holds no row")
    return []


def _rows(data: DataConfig, columns: Sequence[str]) -> Iterator[DataRow | RowFailure]:
    """The chosen rows of a dataset with the columns, of which any may be lacking."""
    dataset = Dataset(data.path or "", data.format, parse_bytes(data.max_line_bytes))
    with ExitStack() as stack:
        maker = stack.enter_context(closing(RowMaker(data, DecodingParams(), False, columns=columns)))
        folder = stack.enter_context(TemporaryFolder())
        index = stack.enter_context(RowIndex(folder / "rows.sqlite"))
        survey(dataset, maker, selection_of(data), index)
        yield from (row for row, _ in index.in_order())


def _examples(config: EvaluateConfig, names: _ColumnNames) -> Examples:
    """The solved examples, each a prompt and its right answer; none where none are asked for."""
    task = config.task
    if not task.few_shot:
        return Examples()
    data = replace(
        config.rows_data,
        path=task.few_shot_path,
        format="auto",
        limit=task.few_shot,
        skip=0,
        shuffle_seed=None,
    )
    reader = _QuestionReader(config, names, Examples())
    solved, faults = [], []
    for row in _rows(replace(data, filter_keys=None), names.all):
        if isinstance(row, RowFailure):
            faults.append(f"{row.place}: {row.reason}")
        elif "token_ids" in row.content:
            faults.append(
                f"{row.source}:{row.line}: task.few_shot: examples are texts or chats, no token ids"
            )
        else:
            solved.append((row.content, reader.target(reader.read(row))))
    if not faults and len(solved) < task.few_shot:
        faults.append(f"task.few_shot={task.few_shot}: {task.few_shot_path} has {len(solved)} rows")
    if faults:
        raise ConfigError(faults[:MOST_FAULTS])
    return Examples(solved, task.few_shot_separator)


class _QuestionReader:
    """Makes questions of rows. ValueError says what a row lacks."""

    def __init__(self, config: EvaluateConfig, names: _ColumnNames, examples: Examples) -> None:
        self._task, self._names, self._examples = config.task, names, examples

    def read(self, row: DataRow) -> Question:
        columns, names = columns_of(row), self._names
        choices = self._choices(columns)
        question = Question(
            key=row.key,
            place=f"{row.source}:{row.line}",
            content=self._examples.before(row.content),
            references=self._references(columns),
            choices=choices,
            correct=_correct(columns, names.correct, choices) if names.correct and choices else 0,
            text=row.content["text"] if self._task.text_column is not None else None,
            cluster=None if names.cluster is None else str(columns[names.cluster]),
        )
        return question

    def target(self, question: Question) -> str:
        """The right answer as it stands after an example's prompt."""
        text = question.content.get("text") or ""
        answer = question.choices[question.correct] if question.choices else question.references[0]
        return text_joint(self._task.target_prefix, text, answer) + answer

    def _references(self, columns: Mapping[str, Any]) -> tuple[str, ...]:
        names = self._names
        if names.instructions is not None and names.arguments is not None:
            return _instructions(columns, names.instructions, names.arguments)
        return () if names.reference is None else _references(columns, names.reference)

    def _choices(self, columns: Mapping[str, Any]) -> tuple[str, ...]:
        asked = self._task.choices
        if self._names.correct is None or asked is None:
            return ()
        choices = columns[asked] if isinstance(asked, str) else asked
        if isinstance(choices, str):
            choices = from_text(choices)
        if (
            not isinstance(choices, list | tuple)
            or len(choices) < 2
            or not all(isinstance(e, str) for e in choices)
        ):
            raise ValueError(f"{asked}={shown(choices)}: must be a list of two texts or more")
        return tuple(choices)


def _references(columns: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = columns[name]
    if isinstance(value, Mapping) and "text" in value:
        value = value["text"]
    values = value if isinstance(value, list | tuple) else [value]
    texts = [
        str(answer) if isinstance(answer, int | float) and not isinstance(answer, bool) else answer
        for answer in values
    ]
    if not texts or not all(isinstance(answer, str) for answer in texts):
        raise ValueError(
            f"{name}={shown(value)}: must be the right answer, a text or a number, or a list of them"
        )
    return tuple(texts)


def _instructions(columns: Mapping[str, Any], names: str, arguments: str) -> tuple[str, ...]:
    listed, mappings = columns[names], columns[arguments]
    if (
        not isinstance(listed, list | tuple)
        or not isinstance(mappings, list | tuple)
        or len(listed) != len(mappings)
    ):
        raise ValueError(f"{names}, {arguments}: must be two lists of the same length")
    if not listed or not all(isinstance(name, str) for name in listed):
        raise ValueError(f"{names}={shown(listed)}: must be the names of one instruction or more")
    if not all(isinstance(mapping, Mapping | None) for mapping in mappings):
        raise ValueError(f"{arguments}={shown(mappings)}: must be mappings")
    return tuple(instruction(name, mapping) for name, mapping in zip(listed, mappings, strict=True))


def _correct(columns: Mapping[str, Any], name: str, choices: Sequence[str]) -> int:
    """The number of the right choice, which a row gives as a number, a letter or the text itself."""
    value = columns[name]
    last = _LETTERS[min(len(choices), len(_LETTERS)) - 1]
    if isinstance(value, str):
        text = value.strip()
        bare = [choice.strip() for choice in choices]
        if text in bare:
            return bare.index(text)
        if len(text) == 1 and text.upper() in _LETTERS[: len(choices)]:
            return _LETTERS.index(text.upper())
        value = int(text) if text.isascii() and text.isdigit() and len(text) < 4 else value
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(choices):
        return value
    raise ValueError(
        f"{name}={shown(value)}: must be 0 to {len(choices) - 1}, A to {last}, or one of the choices"
    )
