"""`mindbatch compare`: decoding strategies as the columns of an evaluation without references, timed."""

from __future__ import annotations

import dataclasses
import sys
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path

import orjson
from rich.console import Console

from mindbatch.config.saved import save_config
from mindbatch.decoding import DecodingParams
from mindbatch.engine.request import CompletionOutput, RequestOutput
from mindbatch.evaluation import REFERENCE_FREE
from mindbatch.evaluation.metric import FACTS, Generated
from mindbatch.io.amounts import counted, per_second
from mindbatch.io.errors import EXIT_DONE, EXIT_FAILED
from mindbatch.io.moving_bar import LoadingLine, MovingBar
from mindbatch.io.screen_text import concealed, data_output, printable, say
from mindbatch.io.storage import make_folder
from mindbatch.llm import LLM
from mindbatch.prompts.prompts import Prompt, PromptRows
from mindbatch.tasks.evaluate.columns import Column
from mindbatch.tasks.evaluate.compare_schema import CONFIG, PAGE, CompareConfig
from mindbatch.tasks.evaluate.questions import Question
from mindbatch.tasks.evaluate.requests import MeasuredColumn
from mindbatch.tasks.evaluate.results import Evaluation, as_json, evaluation_page, scores_by
from mindbatch.tasks.evaluate.schema import OWN_MODEL
from mindbatch.tasks.evaluate.task import write_files

WARM_UP_BATCHES = 2
"""Batches of prompts in the warm-up: those of the second start while those of the first end."""
DEFAULT_TIMINGS = 3
LONGEST_ROUND = 60.0
"""Seconds of a round of all strategies beyond which it is not repeated, unless `timings` is set."""


def run(config: CompareConfig) -> int:
    """Runs the task; returns the exit code: failed when any prompt could not be run."""
    rows = config.prompt_rows()
    with LoadingLine() as line:
        llm = LLM.from_config(config, line)
    evaluation = compared(llm, config, rows)
    written = []
    if config.output.dir is not None:
        folder = Path(config.output.dir)
        make_folder(folder)
        page, saved = (folder / name for name in (PAGE, CONFIG))
        written = write_files(evaluation, folder, page)
        save_config(config, saved, fixed={"date": rows.date})
    if config.output.format == "json":
        print(orjson.dumps(as_json(evaluation)).decode(), file=data_output())
    else:
        print("\n\n".join([*_texts(evaluation, config.limit), evaluation_page(evaluation)]))
    errors = {error for column in evaluation.columns.values() for error in column.errors.items()}
    say(*(f"written {path}" for path in written), *(reason for _, reason in sorted(errors)))
    return EXIT_FAILED if errors else EXIT_DONE


def compared(llm: LLM, config: CompareConfig, rows: PromptRows) -> Evaluation:
    """Runs and times the strategies over the rows, and evaluates them; the first one is the baseline."""
    strategies = {
        name: DecodingParams(**dataclasses.asdict(decoding)) for name, decoding in config.variants.items()
    }
    num_warm_up = min(WARM_UP_BATCHES * config.model.batch_size, len(rows.prompts)) if config.warm_up else 0
    columns, questions = run_strategies(llm, strategies, rows, num_warm_up, config.timings)
    first, *_ = columns.values()
    baselines = dict.fromkeys(columns, first.column.name)
    warm_up = f"Before, every column ran the first {counted(num_warm_up, 'prompt')}."
    caching = f"Prefix caching was {'on' if config.runtime.prefix_caching else 'off'}."
    return Evaluation(
        task="comparison",
        questions=questions,
        columns=columns,
        baselines=baselines,
        scores=scores_by(REFERENCE_FREE, columns, questions, baselines),
        settings=concealed(config.resolved_settings),
        timing_note=f"Each column was timed {counted(len(first.speeds), 'time')}, by turns and by itself, "
        f"with up to {config.model.batch_size} sequences in a batch; the median counts. "
        f"{warm_up if num_warm_up else 'There was no warm-up.'} {caching} "
        "Tokens that a search drops again are not counted.",
    )


def run_strategies(
    llm: LLM,
    strategies: Mapping[str, DecodingParams],
    rows: PromptRows,
    num_warm_up: int,
    timings: int | None = 1,
) -> tuple[dict[str, MeasuredColumn], list[Question]]:
    """Runs each strategy over all rows, by turns; returns the column of each, and the rows as questions.

    num_warm_up: every strategy runs so many of the rows before any is timed. The same rows take the same
    steps again, so that their graphs are already compiled.
    timings: rounds in which each strategy runs all rows; None is DEFAULT_TIMINGS, but one of a long round.
    """
    rounds = DEFAULT_TIMINGS if timings is None else timings
    total = len(strategies) * (rounds * len(rows.prompts) + num_warm_up)
    refused = {int(row.key): row.error for row in rows.errors}
    columns = {name: MeasuredColumn(Column(name, OWN_MODEL, name)) for name in strategies}
    seconds: dict[str, list[float]] = {name: [] for name in strategies}
    texts = dict.fromkeys(range(len(rows.prompts) + len(rows.errors)), "a prompt that cannot run")
    ended, has_text = count(1), llm.tokenizer is not None
    with MovingBar("comparing", Console(stderr=True), disable=not sys.stderr.isatty()) as bar:

        def run_rows(column: MeasuredColumn, prompts: Sequence[Prompt], note: str = "") -> list[str]:
            name, errors = column.column.name, dict(refused)
            outputs: dict[int, tuple[Generated, ...]] = {}
            steps = llm.steps((prompt, strategies[name]) for prompt in prompts)
            for result in (result for step in steps for result in step.finished):
                number = int(result.key)
                texts[number] = prompt_text(result) or texts[number]
                if result.error is None:
                    outputs[number] = tuple(generated(output, has_text) for output in result.outputs)
                else:
                    errors[number] = result.error
                bar.set(next(ended), total, f"{name}{note}")
            column.outputs, column.errors = outputs, errors
            return llm.take_notes()

        for column in columns.values():
            notes = run_rows(column, rows.prompts[:num_warm_up], ", warming up")
        for _ in range(rounds):
            for name, column in columns.items():
                started = time.perf_counter()
                notes = run_rows(column, rows.prompts)
                seconds[name].append(time.perf_counter() - started)
            if timings is None and sum(map(sum, seconds.values())) > LONGEST_ROUND:
                break
    say(*notes)
    for name, column in columns.items():
        column.num_tokens = sum(output.num_tokens for row in column.outputs.values() for output in row)
        column.speeds = [per_second(column.num_tokens, elapsed) for elapsed in seconds[name]]
    return columns, [Question(str(n), f"prompts[{n}]", {"text": text}) for n, text in texts.items()]


def prompt_text(result: RequestOutput) -> str | None:
    """Returns the text of a prompt, or its token ids as words; None if neither is known."""
    if result.prompt is None and result.prompt_token_ids:
        return f"token ids {' '.join(map(str, result.prompt_token_ids))}"
    return result.prompt


def generated(output: CompletionOutput, has_text: bool) -> Generated:
    """Takes what is evaluated from an output. has_text: False without a tokenizer; ids are the words."""
    text = output.text if has_text else " ".join(map(str, output.token_ids))
    facts = {name: getattr(output, name) for name in FACTS}
    return Generated(text, array("I", output.token_ids), output.cumulative_logprob, facts)


def _texts(evaluation: Evaluation, limit: int) -> Iterator[str]:
    """Yields the texts of the first prompts for people, a line for each."""
    width = max(map(len, evaluation.columns))
    for number, question in enumerate(evaluation.questions[:limit]):
        lines = [f"{number + 1}. {printable(question.content['text'])}"]
        for name, column in evaluation.columns.items():
            texts = [output.text.replace("\n", " ").strip() for output in column.outputs.get(number, ())]
            texts = [printable(text) or "(no text)" for text in texts]
            if number in column.errors:
                texts = [f"({printable(column.errors[number])})"]
            heads = [printable(name), *[""] * (len(texts) - 1)]
            lines += [f"  {head:<{width}}  {text}" for head, text in zip(heads, texts, strict=False)]
        yield "\n".join(lines)
    more = len(evaluation.questions) - limit
    if more > 0:
        yield f"{more:,} more prompts; limit=N shows the texts of more, output.dir=FOLDER writes all"
