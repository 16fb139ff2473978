"""Questions of an evaluation: reads each row of its data, with the right answer and the text to score."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from typing import Any, TypeVar

import orjson

from mindbatch.config.machine import parse_bytes
from mindbatch.dataset.column_rows import from_text
from mindbatch.dataset.data_config import DataConfig
from mindbatch.dataset.dataset import MAX_LOOKED_AT, Dataset
from mindbatch.dataset.rows import DataRow, RowFailure, RowMaker
from mindbatch.decoding import DecodingParams
from mindbatch.evaluation import metric_of
from mindbatch.evaluation.answers import instruction
from mindbatch.evaluation.extraction import reference_extraction
from mindbatch.io.error_lines import did_you_mean, shown
from mindbatch.io.errors import ConfigError
from mindbatch.io.storage import TemporaryFolder
from mindbatch.run.index import RowIndex
from mindbatch.run.result_rows import columns_of
from mindbatch.run.survey import fetched_data, selection_of, survey
from mindbatch.tasks.evaluate.schema import EvaluateConfig
from mindbatch.tasks.evaluate.task_schema import AnswerConfig

USUAL_REFERENCES = ("reference", "references", "answer", "target")
USUAL_CORRECT = "answer"
INSTRUCTED = ("prompt_level_strict_acc", "inst_level_strict_acc")
MAX_ERRORS = 5
SYSTEM = "system"
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

PromptContent = Mapping[str, Any]
"""Content of a prompt, as `Prompt` takes it."""
Columns = Mapping[str, Any]
"""Values of a row, by column."""
Item = TypeVar("Item")


@dataclass(frozen=True)
class Question:
    """A row of the task.

    source: file and line, as `sums.jsonl:6`. content: the prompt; empty if `text` is scored as a whole.
    references: the right answers. choices: continuations to choose from. correct: index of the right choice.
    text: a text whose likelihood is scored. cluster: the same for rows that belong together.
    """

    key: str
    source: str
    content: PromptContent
    references: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    correct: int = 0
    text: str | None = None
    cluster: str | None = None

    @property
    def prompt(self) -> str:
        """The text of the prompt; of chats and token ids, their JSON."""
        return self.content.get("text") or orjson.dumps(dict(self.content)).decode()

    @property
    def targets(self) -> tuple[str, ...]:
        """The right choice, or the right answers."""
        return (self.choices[self.correct],) if self.choices else self.references


@dataclass(frozen=True)
class Examples:
    """Examples of a task, each a prompt with its right answer. separator: stands after each in a text."""

    solved: Sequence[tuple[PromptContent, str]] = ()
    separator: str = ""

    def before(self, content: PromptContent) -> PromptContent:
        """Puts the examples before a prompt; system messages are those of the prompt alone.

        Raises:
            ValueError: the prompt is a text and the examples are chats, or the other way round.
        """
        kind = _kind(content)
        others = {_kind(example) for example, _ in self.solved} - {kind}
        if others:
            raise ValueError(
                f"task.few_shot: the prompt is {kind}, the examples are {' and '.join(sorted(others))}"
            )
        if not self.solved:
            return content
        if kind == "text":
            solved = "".join(example["text"] + answer + self.separator for example, answer in self.solved)
            return {**content, "text": solved + content["text"]}
        turns: list[Mapping[str, Any]] = []
        for example, answer in self.solved:
            turns += [message for message in example["messages"] if message["role"] != SYSTEM]
            turns.append({"role": "assistant", "content": answer.strip()})
        messages = content["messages"]
        begin = sum(message["role"] == SYSTEM for message in messages[:1])
        return {**content, "messages": [*messages[:begin], *turns, *messages[begin:]]}


def _kind(content: PromptContent) -> str:
    return "chat" if "messages" in content else "text" if "text" in content else "token ids"


def text_joint(prefix: str | None, text: str, answer: str) -> str:
    """Chooses the separator of a text and an answer.

    It is `task.target_prefix`; or else one space, unless the text ends or the answer begins with white space.
    """
    if prefix is not None:
        return prefix
    return "" if not text or text[-1].isspace() or answer[:1].isspace() else " "


def needed(names: Sequence[str]) -> set[str]:
    """Collects the inputs that the metrics need: generation, choices, likelihood."""
    return {metric_of(name).needs for name in names}


def read_questions(config: EvaluateConfig) -> list[Question]:
    """Reads the questions of the data, in its order.

    Raises:
        ConfigError: a column is missing, or rows are invalid, of which the first few are named. They are not
            skipped, because a score over other rows is not the score of the task.
    """
    task, names = config.task, _column_names(config, _first_columns(config.data))
    examples = _examples(config, names)
    return _each_row(config.rows_data, names, lambda row: _question(task, names, examples, row))


def _column_names(config: EvaluateConfig, columns: Collection[str]) -> dict[str, str]:
    """Finds the columns that the task reads. Raises ConfigError naming each that the first row lacks."""
    task, needs, errors = config.task, needed(config.metric_names), list[str]()
    names: dict[str, str] = {}

    def read(key: str, column: str | None, usual: Sequence[str] = ()) -> None:
        name = column or next((usual_name for usual_name in usual if usual_name in columns), None)
        if name is None and usual:
            hint = f"must be given, for the data has no column {' or '.join(usual)}"
            errors.append(f"task.{key}: {hint}; it has {', '.join(columns)}")
        elif name is not None and name not in columns:
            near = did_you_mean(name, columns)
            errors.append(
                f"task.{key}={shown(name)}: no column of the data, which has {', '.join(columns)}{near}"
            )
        elif name is not None:
            names[key] = name

    answered = task.text_column is None and needs & {"generation", "likelihood"}  # not what needs no answer
    follows = task.instructions_column is not None
    instructed = {*INSTRUCTED} & {*config.metric_names}
    if follows != bool(instructed) or (follows and len(instructed) < len(config.metric_names)):
        errors.append(
            f"task.instructions_column: goes with the metrics {' and '.join(INSTRUCTED)}, and no others"
        )
    of_choices = "choices" in needs
    if of_choices and task.choices is None:
        errors.append(
            "task.choices: must be given for acc and acc_norm: a list of texts, or the column of one"
        )
    if answered and not follows:
        read("reference_column", task.reference_column, USUAL_REFERENCES)
    if of_choices and isinstance(task.choices, str):
        read("choices", task.choices)
    if of_choices:
        read("correct_column", task.correct_column, [USUAL_CORRECT])
    read("cluster_column", task.cluster_column)
    read("instructions_column", task.instructions_column)
    read("arguments_column", task.arguments_column)
    read("text_column", task.text_column)
    names.pop("text_column", None)  # a row's prompt, which it has anyway
    if task.text_column is not None and needs != {"likelihood"}:
        errors.append(
            "task.text_column: a text as a whole has a likelihood only; use perplexity metrics alone"
        )
    if errors:
        raise ConfigError(errors)
    return names


def _first_columns(data: DataConfig) -> list[str]:
    first = None
    for first in islice(_dataset(data).records(), MAX_LOOKED_AT):
        if first.columns is not None:
            return [*first.columns]
    if first is None:
        raise ConfigError(f"data.path: {data.path}: holds no row")
    return []


def _dataset(data: DataConfig) -> Dataset:
    return Dataset(_local_paths(data.path or ""), data.format, parse_bytes(data.max_line_bytes))


@cache
def _local_paths(path: str | tuple[str, ...]) -> str | Sequence[str]:
    """Fetches what is elsewhere, once: the rows are read several times, and a revision may move."""
    return fetched_data(path)[0]


def _each_row(data: DataConfig, names: Mapping[str, str], read: Callable[[DataRow], Item]) -> list[Item]:
    """Reads each chosen row. ConfigError names the first few rows that `read` raises ValueError for."""
    items, errors = list[Item](), list[str]()
    with ExitStack() as stack:
        columns = [*dict.fromkeys(names.values())]
        maker = stack.enter_context(closing(RowMaker(data, DecodingParams(), False, columns=columns)))
        folder = stack.enter_context(TemporaryFolder())
        index = stack.enter_context(RowIndex(folder / "rows.sqlite"))
        survey(_dataset(data), maker, selection_of(data), index)
        for row, _ in index.in_order():
            if isinstance(row, RowFailure):
                errors.append(f"{row.location}: {row.reason}")
                continue
            try:
                items.append(read(row))
            except ValueError as error:
                errors.append(f"{row.source}:{row.line}: {error}")
    if errors:
        more = [f"and {len(errors) - MAX_ERRORS} more rows"] if len(errors) > MAX_ERRORS else []
        raise ConfigError([*errors[:MAX_ERRORS], *more])
    return items


def _examples(config: EvaluateConfig, names: Mapping[str, str]) -> Examples:
    """Reads the solved examples, each a prompt and its right answer; none without `task.few_shot`."""
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
        filter_keys=None,
    )

    def solved(row: DataRow) -> tuple[PromptContent, str]:
        if "token_ids" in row.content:
            raise ValueError("task.few_shot: examples are texts or chats, no token ids")
        question = _question(task, names, Examples(), row)
        answer = question.choices[question.correct] if question.choices else question.references[0]
        return row.content, text_joint(task.target_prefix, row.content.get("text") or "", answer) + answer

    examples = _each_row(data, names, solved)
    if len(examples) < task.few_shot:
        raise ConfigError(f"task.few_shot={task.few_shot}: {task.few_shot_path} has {len(examples)} rows")
    return Examples(examples, task.few_shot_separator)


def _question(task: AnswerConfig, names: Mapping[str, str], examples: Examples, row: DataRow) -> Question:
    """Makes a question of a row. Raises ValueError for what the row lacks."""
    columns = columns_of(row)
    references: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    if "instructions_column" in names:
        references = _instructions(columns, names["instructions_column"], names["arguments_column"])
    elif "reference_column" in names:
        references = _references(columns, names["reference_column"])
        extract = reference_extraction(task.extract)
        if all(extract(reference) is None for reference in references):
            raise ValueError(
                f"{names['reference_column']}={shown(references[0])}: task.extract={task.extract} reads no "
                "answer out of it, so that none could be right"
            )
    correct = 0
    if "correct_column" in names:
        choices = _choices(columns, task.choices)
        correct = _correct(columns, names["correct_column"], choices)
    return Question(
        key=row.key,
        source=f"{row.source}:{row.line}",
        content=examples.before(row.content),
        references=references,
        choices=choices,
        correct=correct,
        text=row.content["text"] if task.text_column is not None else None,
        cluster=str(columns[names["cluster_column"]]) if "cluster_column" in names else None,
    )


def _choices(columns: Columns, setting: Any) -> tuple[str, ...]:
    """Reads the choices of a row. setting: `task.choices`, those of all rows or the name of a column."""
    choices = columns[setting] if isinstance(setting, str) else setting
    if isinstance(choices, str):
        choices = from_text(choices)
    is_list = isinstance(choices, list | tuple) and len(choices) >= 2
    if not is_list or not all(isinstance(choice, str) for choice in choices):
        raise ValueError(f"{setting}={shown(choices)}: must be a list of two texts or more")
    return tuple(choices)


def _references(columns: Columns, name: str) -> tuple[str, ...]:
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


def _instructions(columns: Columns, names: str, arguments: str) -> tuple[str, ...]:
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


def _correct(columns: Columns, name: str, choices: Sequence[str]) -> int:
    """Finds the number of the right choice, which a row has as a number, a letter or the text itself."""
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
