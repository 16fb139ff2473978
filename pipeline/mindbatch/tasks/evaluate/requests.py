"""Requests of an evaluation: writes files of prompts to continue and tokens to score; reads their results."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import orjson

from mindbatch.dataset.data_config import DataConfig
from mindbatch.evaluation.extraction import pattern_extraction, reference_extraction
from mindbatch.evaluation.metric import Answer, ChoiceScores, TextLikelihood
from mindbatch.io.error_lines import shown
from mindbatch.io.errors import CheckpointError, ConfigError, MindBatchError, PromptError
from mindbatch.io.screen_text import say
from mindbatch.io.storage import make_folder, write_whole
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.loading.providers import open_model
from mindbatch.prompts.prompts import NO_TOKENIZER, TEMPLATE_KWARGS, TOOLS, Prompt, token_ids_of
from mindbatch.prompts.tokenizer import Tokenizer
from mindbatch.tasks.evaluate.columns import Column, model_of
from mindbatch.tasks.evaluate.questions import PromptContent, Question, needed, text_joint
from mindbatch.tasks.evaluate.schema import EvaluateConfig
from mindbatch.tasks.evaluate.stored_outputs import OutputsByQuestion, ReadAnswers, StoredOutputs
from mindbatch.tasks.evaluate.task_schema import AnswerConfig

GENERATION, CHOICES, LIKELIHOOD = "generation", "choices", "likelihood"
"""Kinds of requests, each with a file of its own."""
DECODING = "decoding"
"""Column of a request's own decoding parameters: the position from which its tokens are scored."""
_USER_TEXT, _ASSISTANT_TEXT = "question", "answer"
"""Messages of a chat that shows what a template writes before an answer."""

JsonRow = dict[str, Any]


@dataclass(frozen=True)
class Continuations:
    """Encodes prompts with answers behind them, by one tokenizer. prefix: `task.target_prefix`."""

    prefix: str | None
    tokenizer: Tokenizer

    def text(self, content: PromptContent, answer: str) -> str:
        """Puts the separator of prompt and answer before the answer."""
        if self.prefix is not None or answer[:1].isspace() or self.tokenizer.output_start:
            return (self.prefix or "") + answer  # behind `output_start` it begins a text
        if "messages" in content:
            return self._chat_joint + answer
        text = content.get("text") or self.tokenizer.decode(content.get("token_ids", ()))
        return text_joint(None, text, answer) + answer

    def tokens(self, content: PromptContent, answer: str) -> tuple[list[int], int]:
        """Encodes a prompt and its continuation as one text; returns the tokens and how many are scored.

        Scored are those that reach beyond the last character of the prompt: white space at its end is in a
        token with the first word behind it, where a vocabulary has them together. What stands behind
        `output_start`, or behind token ids that are no text's, is encoded by itself. Before what has no
        prompt stands the token that begins a text, if there is one.
        """
        text, tokenizer = self.text(content, answer), self.tokenizer
        if not tokenizer.output_start and (prompt := self._prompt_text(content)):
            tokens, count = tokenizer.encode_continued(prompt, text)
        elif not tokenizer.output_start and "messages" in content:
            tools = {"tools": content.get("tools")}
            variables = {**(content.get("chat_template_kwargs") or {}), **tools}
            tokens, count = tokenizer.encode_chat_continued(
                content["messages"], text, variables, content.get("date")
            )
        else:
            added = tokenizer.encode(text, add_special_tokens=False)
            context = token_ids_of(Prompt(key="", source="", **content), tokenizer)
            tokens, count = [*context, *added], len(added)
        begin = tokenizer.bos_token_id
        if count == len(tokens) and begin is not None and tokens[:1] != [begin]:
            tokens = [begin, *tokens]
        return tokens, count

    def _prompt_text(self, content: PromptContent) -> str | None:
        """Returns the text of a prompt, also of token ids that are those of a text."""
        if "token_ids" not in content:
            return content.get("text")
        text = self.tokenizer.decode(content["token_ids"])
        return text if self.tokenizer.encode(text) == [*content["token_ids"]] else None

    @cached_property
    def _chat_joint(self) -> str:
        """The white space that the chat template writes between its generation prompt and an answer; where it
        writes something else there, as with a text."""
        question = [{"role": "user", "content": _USER_TEXT}]
        conversation = [*question, {"role": "assistant", "content": _ASSISTANT_TEXT}]
        try:
            prompt = self.tokenizer.chat_text(question)
            text = self.tokenizer.chat_text(conversation, add_generation_prompt=False)
        except MindBatchError:
            return ""  # the row's own chat tells why
        between, marker, _ = text.removeprefix(prompt).partition(_ASSISTANT_TEXT)
        is_written = text.startswith(prompt) and marker and not between.strip()
        return between if is_written else text_joint(None, prompt, _ASSISTANT_TEXT)


@dataclass(frozen=True)
class Requests:
    """Requests for a model.

    files: by kind, the file and the number of its rows.
    continuations: encodes prompts with answers behind them; None where nothing is scored.
    """

    files: Mapping[str, tuple[Path, int]]
    continuations: Continuations | None


def prepare_requests(
    config: EvaluateConfig, column: Column, questions: list[Question], home: Path
) -> Requests:
    """Writes the requests for a model: its tokenizer says where a continuation begins."""
    folder, needs = home / "requests" / column.checkpoint, needed(config.metric_names)
    model = model_of(config, column)
    rows: dict[str, Iterable[JsonRow]] = {GENERATION: generation_rows(questions, config.data)}
    continuations = None
    if needs & {CHOICES, LIKELIHOOD}:
        source = Path(model.tokenizer or model.checkpoint_name_or_path or "")
        tokenizer = Tokenizer.load(source, special_tokens=model.special_tokens)
        if tokenizer is None:
            raise CheckpointError(f"{source}: {NO_TOKENIZER}")
        continuations = Continuations(config.task.target_prefix, tokenizer)
        rows[CHOICES] = choice_rows(questions, continuations)
        rows[LIKELIHOOD] = answer_rows(questions, continuations)
        if config.task.text_column is not None:
            window = (model.seq_length or open_model(model).spec.max_positions) - 1
            rows[LIKELIHOOD] = text_rows(questions, tokenizer, window, config.task.stride)
    if "outputs" in needs:
        needs.add(GENERATION)
    paths = {kind: folder / f"{kind}.jsonl" for kind in rows if kind in needs}
    files = {kind: (path, write_requests(path, rows[kind])) for kind, path in paths.items()}
    if continuations is not None and (note := continuations.tokenizer.take_note()) is not None:
        say(note)
    return Requests(files, continuations)


def generation_rows(questions: Iterable[Question], data: DataConfig) -> Iterator[JsonRow]:
    """Yields the prompts, by the number of the question, with their own settings of the chat template."""
    for number, question in enumerate(questions):
        content = question.content
        name = "messages" if "messages" in content else "prompt"
        value = content.get("messages") or content.get("text") or content.get("token_ids")
        yield {"key": str(number), name: value, **_own_options(content, data)}


def _own_options(content: PromptContent, data: DataConfig) -> JsonRow:
    """Tools and variables of a chat that `requests_data` does not give to all; those may be secrets."""
    shared, own = data.chat_template_kwargs or {}, content.get(TEMPLATE_KWARGS) or {}
    variables = {name: value for name, value in own.items() if name not in shared or shared[name] != value}
    tools = content.get(TOOLS) if content.get(TOOLS) != data.tools else None
    return {name: value for name, value in ((TOOLS, tools), (TEMPLATE_KWARGS, variables)) if value}


def choice_rows(questions: Iterable[Question], continuations: Continuations) -> Iterator[JsonRow]:
    """Yields each prompt with each of its choices after it; the key is QUESTION.CHOICE."""
    for number, question in enumerate(questions):
        for choice, text in enumerate(question.choices):
            yield _scored(f"{number}.{choice}", *_continued(question, text, continuations))


def answer_rows(questions: Iterable[Question], continuations: Continuations) -> Iterator[JsonRow]:
    """Yields each prompt with its first right answer after it; the key is QUESTION.0."""
    for number, question in enumerate(questions):
        yield _scored(f"{number}.0", *_continued(question, question.references[0], continuations))


def text_rows(
    questions: Iterable[Question], tokenizer: Tokenizer, window: int, stride: int | None
) -> Iterator[JsonRow]:
    """Yields each text in windows that score each token once; the key is QUESTION.WINDOW.

    window: largest number of tokens. stride: tokens that each further window scores; null is half a window.
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
        if len(tokens) <= scored:
            continue
        ends = [*range(min(window, len(tokens)), len(tokens), step), len(tokens)]
        for part, end in enumerate(ends):
            yield _scored(f"{number}.{part}", [*start, *tokens[max(0, end - window) : end]], end - scored)
            scored = end


def _continued(question: Question, answer: str, continuations: Continuations) -> tuple[list[int], int]:
    """Tokens as of `Continuations.tokens`. Raises ConfigError where there is no token to score."""
    try:
        tokens, count = continuations.tokens(question.content, answer)
    except PromptError as error:
        raise PromptError([f"{question.source}: {problem}" for problem in error.lines]) from error
    if not count:
        raise ConfigError(
            f"{question.source}: the answer {shown(answer)} has no token whose likelihood counts"
        )
    return tokens, count


def _scored(key: str, tokens: Sequence[int], count: int) -> JsonRow:
    """Makes a request whose last `count` tokens are scored; the first of all has no probability."""
    start = max(1, len(tokens) - count)
    return {"key": key, "prompt": list(tokens), DECODING: {"prompt_logprobs_start": start}}


def write_requests(path: Path, rows: Iterable[JsonRow]) -> int:
    """Writes a file of requests atomically; returns their number. The same rows make the same bytes.

    Raises:
        StorageError: the file cannot be written.
        ConfigError: there are no requests.
    """
    lines = [orjson.dumps(row) for row in rows]
    if not lines:
        raise ConfigError(f"{path.name}: no row has anything to be scored")
    data = b"\n".join(lines) + b"\n"
    if not path.is_file() or path.read_bytes() != data:
        make_folder(path.parent)
        write_whole(path, data)
    return len(lines)


@dataclass
class MeasuredColumn:
    """Results of a column, which the metrics measure, by the number of the question, and errors.

    outputs: the generated texts. generation: the answers that were read out of these texts.
    num_tokens: the number of generated tokens. speeds: tokens/s of each timed round.
    continuations: continuations of the prompts, if they were scored.
    """

    column: Column
    outputs: OutputsByQuestion = field(default_factory=dict)
    generation: Mapping[int, tuple[Answer, ...]] = field(default_factory=dict)
    choices: dict[int, tuple[ChoiceScores]] = field(default_factory=dict)
    likelihood: dict[int, tuple[TextLikelihood]] = field(default_factory=dict)
    num_tokens: int = 0
    speeds: Sequence[float] = ()
    errors: dict[int, str] = field(default_factory=dict)
    continuations: Continuations | None = None

    @property
    def speed(self) -> float | None:
        """The median of tokens per second; None if the column was not timed."""
        return median(self.speeds) if self.speeds else None

    def scored_text(self, question: Question, answer: str = "") -> str:
        """Returns the scored text: an answer with its separator, or the question's text."""
        if question.text is not None:
            return question.text
        assert self.continuations is not None
        return self.continuations.text(question.content, answer)


def measured(
    column: Column,
    folders: Mapping[str, RunFolder],
    continuations: Continuations | None,
    task: AnswerConfig,
    questions: Sequence[Question],
) -> MeasuredColumn:
    """Reads the results of a column's runs, whose folders are by what they measure.

    A row that could not be run is an error, and its answer a wrong one where any row could be run.
    """
    measured_column = MeasuredColumn(column, continuations=continuations)
    for kind, folder in folders.items():
        for failure in _json_lines(folder.errors):
            measured_column.errors[int(failure["key"].partition(".")[0])] = failure["reason"]
        results = folder.results("jsonl")
        if kind == GENERATION:
            _take_generations(measured_column, results, task, questions)
        else:
            _take_scored(measured_column, _json_lines(results), kind, questions)
    return measured_column


def _take_generations(
    column: MeasuredColumn, results: Path, task: AnswerConfig, questions: Sequence[Question]
) -> None:
    column.outputs = outputs = StoredOutputs(results)
    column.num_tokens = outputs.num_tokens
    if not outputs:
        return
    of_output = of_reference = reference_extraction(task.extract)
    if task.extract_pattern is not None:
        of_output = pattern_extraction(task.extract_pattern)
    if task.instructions_column is not None:  # they are no texts that an answer is read out of
        of_reference = str.strip
    column.generation = ReadAnswers(outputs, questions, of_output, of_reference)


def _take_scored(
    column: MeasuredColumn, lines: Iterable[JsonRow], kind: str, questions: Sequence[Question]
) -> None:
    """Adds the questions all of whose parts were scored."""
    scored: dict[int, dict[int, tuple[float, int]]] = defaultdict(dict)  # log-probability, tokens
    for line in lines:
        number, part = map(int, line["key"].split("."))
        scored[number][part] = sum(logprobs := _logprobs(line)), len(logprobs)
    for number, parts in scored.items():
        question = questions[number]
        if number in column.errors:
            continue
        if kind == CHOICES:
            totals = tuple(parts[choice][0] for choice in range(len(question.choices)))
            lengths = tuple(len(column.scored_text(question, text).encode()) for text in question.choices)
            column.choices[number] = (ChoiceScores(totals, lengths, question.correct),)
            continue
        text = column.scored_text(question, *question.references[:1])
        likelihood = TextLikelihood(
            logprob=sum(logprob for logprob, _ in parts.values()),
            num_tokens=sum(count for _, count in parts.values()),
            num_words=len(text.split()),
            num_bytes=len(text.encode()),
        )
        column.likelihood[number] = (likelihood,)


def _logprobs(line: JsonRow) -> list[float]:
    """Returns the log-probabilities of the scored tokens of a request, which are its last ones."""
    likely = line["prompt_logprobs"]
    tokens = line["prompt"][-len(likely) :]
    return [logprobs[str(token)] for token, logprobs in zip(tokens, likely, strict=True)]


def _json_lines(path: Path) -> Iterator[JsonRow]:
    """Yields the rows of a file one at a time; none where there is no file."""
    if path.is_file():
        with path.open("rb") as file:
            yield from map(orjson.loads, file)
