"""Requests of a task: files of prompts to continue, and of tokens the last of which are scored."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from mindbatch.dataset.data_config import DataConfig
from mindbatch.io.errors import CheckpointError, ConfigError, PromptError
from mindbatch.io.fault_lines import shown
from mindbatch.io.screen_text import say
from mindbatch.io.storage import make_folder, write_whole
from mindbatch.loading.providers import open_model
from mindbatch.prompts.prompts import NO_TOKENIZER, TEMPLATE_KWARGS, TOOLS
from mindbatch.prompts.tokenizer import Tokenizer
from mindbatch.tasks.evaluate.columns import DECODING, Column, model_of
from mindbatch.tasks.evaluate.continuation import Continuations
from mindbatch.tasks.evaluate.questions import Question, needed
from mindbatch.tasks.evaluate.schema import EvaluateConfig

GENERATION, CHOICES, LIKELIHOOD = "generation", "choices", "likelihood"
KINDS = (GENERATION, CHOICES, LIKELIHOOD)

Row = dict[str, Any]


@dataclass(frozen=True)
class Requests:
    """A file of requests for a model: what it measures, its rows, and what continues their prompts."""

    kind: str
    path: Path
    count: int
    continuations: Continuations | None


def prepare_requests(
    config: EvaluateConfig, column: Column, questions: list[Question], home: Path
) -> Iterator[Requests]:
    """Writes the requests for a model: its tokenizer says where a continuation begins."""
    folder, needs = home / "requests" / column.checkpoint, needed(config.metric_names)
    model = model_of(config, column)
    rows: dict[str, Iterable[dict[str, object]]] = {GENERATION: generation_rows(questions, config.data)}
    continuations = None
    if needs & {CHOICES, LIKELIHOOD}:
        place = Path(model.tokenizer or model.checkpoint_name_or_path or "")
        tokenizer = Tokenizer.load(place, special_tokens=model.special_tokens)
        if tokenizer is None:
            raise CheckpointError(f"{place}: {NO_TOKENIZER}")
        continuations = Continuations(config.task.target_prefix, tokenizer)
        rows[CHOICES] = choice_rows(questions, continuations)
        rows[LIKELIHOOD] = answer_rows(questions, continuations)
        if config.task.text_column is not None:
            window = (model.seq_length or open_model(model).spec.max_positions) - 1
            rows[LIKELIHOOD] = text_rows(questions, tokenizer, window, config.task.stride)
    if "outputs" in needs:
        needs.add(GENERATION)
    for kind in KINDS:
        if kind in needs:
            path = folder / f"{kind}.jsonl"
            yield Requests(kind, path, write_requests(path, rows[kind]), continuations)
    if continuations is not None and (note := continuations.tokenizer.take_note()) is not None:
        say(note)


def generation_rows(questions: Iterable[Question], data: DataConfig) -> Iterator[Row]:
    """The prompts, by the number of the question, with what only they give the chat template."""
    for number, question in enumerate(questions):
        content = dict(question.content)
        name = "messages" if "messages" in content else "prompt"
        value = content.get("messages") or content.get("text") or content.get("token_ids")
        yield {"key": str(number), name: value, **_own_options(content, data)}


def _own_options(content: Mapping[str, Any], data: DataConfig) -> Row:
    """Tools and variables of a chat that `requests_data` does not give to all; those may be secrets."""
    shared, own = data.chat_template_kwargs or {}, content.get(TEMPLATE_KWARGS) or {}
    variables = {name: value for name, value in own.items() if name not in shared or shared[name] != value}
    tools = content.get(TOOLS) if content.get(TOOLS) != data.tools else None
    return {name: value for name, value in ((TOOLS, tools), (TEMPLATE_KWARGS, variables)) if value}


def choice_rows(questions: Iterable[Question], continuations: Continuations) -> Iterator[Row]:
    """Each prompt with each of its choices after it; the key is QUESTION.CHOICE."""
    for number, question in enumerate(questions):
        for choice, text in enumerate(question.choices):
            yield _scored(f"{number}.{choice}", *_continued(question, text, continuations))


def answer_rows(questions: Iterable[Question], continuations: Continuations) -> Iterator[Row]:
    """Each prompt with its first right answer after it; the key is QUESTION.0."""
    for number, question in enumerate(questions):
        yield _scored(f"{number}.0", *_continued(question, question.references[0], continuations))


def text_rows(
    questions: Iterable[Question], tokenizer: Tokenizer, window: int, stride: int | None
) -> Iterator[Row]:
    """Each text in windows of which the last tokens are scored, each token once; the key is QUESTION.WINDOW.

    window: most tokens of one. stride: tokens that a window scores after the first; null: half a window.
    The first token is scored only where the tokenizer puts one before it. Before each window stands what an
    output follows, if there is such.
    """
    start = tokenizer.output_start
    window -= len(start)
    step = min(stride or max(1, window // 2), window - 1)
    for number, question in enumerate(questions):
        tokens = tokenizer.encode(question.text or "", add_special_tokens=not start)
        has_begin = bool(tokens) and tokens[0] in tokenizer.special_ids
        if not start and not has_begin and tokenizer.bos_token_id is not None:
            tokens = [tokenizer.bos_token_id, *tokens]
        scored = 0 if start else 1
        ends = _ends(len(tokens), window, step) if len(tokens) > scored else ()
        for place, end in enumerate(ends):
            yield _scored(f"{number}.{place}", [*start, *tokens[max(0, end - window) : end]], end - scored)
            scored = end


def _ends(length: int, window: int, step: int) -> Iterator[int]:
    """Yields the ends of windows that advance by `step` tokens and reach the end of the text."""
    end = min(window, length)
    while end < length:
        yield end
        end = min(end + step, length)
    yield end


def _continued(question: Question, answer: str, continuations: Continuations) -> tuple[list[int], int]:
    """Tokens as of `Continuations.tokens`. Raises ConfigError where there is no token to score."""
    try:
        tokens, count = continuations.tokens(question.content, answer)
    except PromptError as error:
        raise PromptError([f"{question.place}: {fault}" for fault in error.faults]) from error
    if not count:
        raise ConfigError(
            f"{question.place}: the answer {shown(answer)} has no token whose likelihood counts"
        )
    return tokens, count


def _scored(key: str, tokens: Sequence[int], count: int) -> Row:
    """A request whose last `count` tokens are scored; the first of all has no probability."""
    start = max(1, len(tokens) - count)
    return {"key": key, "prompt": list(tokens), DECODING: {"prompt_logprobs_start": start}}


def write_requests(path: Path, rows: Iterable[Row]) -> int:
    """Writes a file of requests, whole or not at all, the same bytes for the same rows; their number.

    Raises:
        StorageError: it cannot be written.
        ConfigError: there is nothing to run.
    """
    lines = [orjson.dumps(row) for row in rows]
    if not lines:
        raise ConfigError(f"{path.name}: no row has anything to be scored")
    data = b"\n".join(lines) + b"\n"
    if not path.is_file() or path.read_bytes() != data:
        make_folder(path.parent)
        write_whole(path, data)
    return len(lines)
