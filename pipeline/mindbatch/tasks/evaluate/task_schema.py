"""The keys of the task of an evaluation: its questions, how answers are read, and what is right."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mindbatch.config.error_log import shown
from mindbatch.config.schema import excludes, option
from mindbatch.evaluation import METRIC_NAMES
from mindbatch.evaluation.extraction import EXTRACTIONS
from mindbatch.fields import kinds as kind

NAME = re.compile(r"[\w.+-]{1,80}", re.ASCII)
NAME_RULE = "must be 1 to 80 letters, digits, and . _ + -"


@dataclass
class AnswerConfig:
    """The question to each row, how its answer is read, and what is right."""

    name: str | None = option(None, "name of the task in the results; null: the name of the data")
    template: str | None = option(
        None, "prompt with the columns filled in, if no key of `data` sets one: Q: {{ question }}"
    )
    max_new_tokens: int | None = option(
        None, "largest number of tokens of an answer, unless decoding.max_new_tokens is set", kind.count(1)
    )
    stop: Any = option(
        None,
        "texts that end an answer, unless decoding.stop is set",
        kind.described("text, list of texts or null"),
    )
    reference_column: str | None = option(
        None,
        "column of the right answer, a text, a number or a list of them (SQuAD's {text: [...]} too); null: "
        "reference, references, answer or target, whichever there is",
        needs=(excludes("task.instructions_column"),),
    )
    instructions_column: str | None = option(
        None,
        "column of the names of instructions that the answer must follow (IFEval), instead of references",
    )
    arguments_column: str | None = option(
        None, "column of the arguments of these instructions, a list of mappings"
    )
    target_prefix: str | None = option(
        None,
        "text between a prompt and an answer or choice whose likelihood is measured; null: one space, "
        "unless the prompt ends or the answer begins with white space",
    )
    choices: Any = option(
        None,
        "continuations of the prompt, one of which is right",
        kind.described("list of texts, the column that holds one, or null"),
    )
    correct_column: str | None = option(
        None, "column of the right choice: its number from 0, its letter or its text; null: answer"
    )
    text_column: str | None = option(
        None, "column of a text whose own likelihood is measured, instead of an answer to a prompt"
    )
    stride: int | None = option(
        None,
        "tokens of a long text that are scored in each window; null: half of the longest sequence",
        kind.count(1),
    )
    few_shot: int | None = option(
        None,
        "number of solved examples of task.few_shot_path before each prompt; 0, null: none",
        kind.count(),
    )
    few_shot_path: str | None = option(None, "file with the rows of the examples", is_path=True)
    few_shot_separator: str = option("\n\n", "text between the examples")
    extract: str = option(
        "text", "part of the output that is the answer", kind.choice(*EXTRACTIONS, "pattern")
    )
    extract_pattern: str | None = option(
        None, "regular expression whose last match, or its first group, is the answer, with extract=pattern"
    )
    cluster_column: str | None = option(
        None, "column with the same value for rows that belong together, such as questions on one text"
    )
    metrics: Any = option(
        ("exact_match",), f"of {', '.join(METRIC_NAMES)}", kind.described("name or list of names")
    )


def answer_errors(task: AnswerConfig) -> Iterator[str]:
    if (task.extract == "pattern") != (task.extract_pattern is not None):
        yield "task.extract_pattern: goes with task.extract=pattern, which needs it"
    if task.extract_pattern is not None:
        try:
            re.compile(task.extract_pattern)
        except re.error as error:
            yield f"task.extract_pattern={shown(task.extract_pattern)}: no regular expression: {error}"
    if task.few_shot and task.few_shot_path is None:
        yield f"task.few_shot={task.few_shot}: needs task.few_shot_path, the file of the examples"
    if task.few_shot is None and task.few_shot_path is not None:
        yield "task.few_shot_path: needs task.few_shot, the number of examples; 0: none of them"
    if (task.instructions_column is None) != (task.arguments_column is None):
        yield "task.instructions_column, task.arguments_column: each needs the other"
    choices = task.choices
    if isinstance(choices, list | tuple) and (
        len(choices) < 2 or not all(isinstance(text, str) and text for text in choices)
    ):
        yield f"task.choices={shown(choices)}: must be two texts or more, or the name of a column"
    elif not isinstance(choices, list | tuple | str | None):
        yield f"task.choices={shown(choices)}: must be a list of texts, the name of a column, or null"
    if task.name is not None and not NAME.fullmatch(task.name):
        yield f"task.name={shown(task.name)}: {NAME_RULE}"
