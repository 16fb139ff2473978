"""`mindbatch compare`: the same prompts under several decoding strategies, by metrics without references."""

from __future__ import annotations

import dataclasses
import sys
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import NamedTuple

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
from mindbatch.io.storage import make_folder, write_whole
from mindbatch.llm import LLM
from mindbatch.prompts.prompts import Prompt, PromptRows
from mindbatch.tasks.evaluate.columns import Column
from mindbatch.tasks.evaluate.compare_schema import COMPARISON_FILES, CompareConfig
from mindbatch.tasks.evaluate.questions import Question
from mindbatch.tasks.evaluate.report import report_page
from mindbatch.tasks.evaluate.requests import MeasuredColumn
from mindbatch.tasks.evaluate.results import Evaluation, as_json, evaluation_page, scores_by, write_results
from mindbatch.tasks.evaluate.schema import OWN_MODEL

BATCHES_WARMED_UP = 2
"""Prompts of the warm-up, in batches: the first makes room as it ends, and the second comes in beside it."""
MOST_TIMINGS = 3
LONGEST_ROUND = 60.0
"""Seconds of a round of all strategies beyond which it is not repeated to be timed, unless asked for."""


class PromptOutputs(NamedTuple):
    """Parts of a request that a comparison needs, in a fifth of the memory.

    text: of the prompt as the strategy had it; None where it has none that is known.
    """

    number: int
    text: str | None
    outputs: tuple[Generated, ...]
    error: str | None

    @classmethod
    def of(cls, result: RequestOutput, has_text: bool) -> PromptOutputs:
        """has_text: False where there is no tokenizer; token ids stand for the words."""
        text = result.prompt
        if text is None and result.prompt_token_ids:
            text = f"token ids {' '.join(map(str, result.prompt_token_ids))}"
        outputs = tuple(_generated(output, has_text) for output in result.outputs)
        return cls(int(result.key), text, () if result.error else outputs, result.error)


@dataclass(frozen=True)
class StrategyRun:
    """One strategy's results, in the order of the prompts, and the seconds of each time it ran them all."""

    name: str
    results: Sequence[PromptOutputs]
    timings: Sequence[float]


def run_strategies(
    llm: LLM,
    strategies: Mapping[str, DecodingParams],
    rows: PromptRows,
    warm_up_prompts: int,
    timings: int | None = 1,
) -> list[StrategyRun]:
    """Each strategy's results for all rows, in their order, and the seconds of each time that it ran them.

    warm_up_prompts: every strategy runs so many of the rows before any is timed. The same rows take the same
    steps again, so that the graphs that these need are there already.
    timings: rounds in which each strategy runs all rows; None is MOST_TIMINGS, but one of a long round.
    """
    rounds = MOST_TIMINGS if timings is None else timings
    total = len(strategies) * (rounds * len(rows.prompts) + warm_up_prompts)
    seconds: dict[str, list[float]] = {name: [] for name in strategies}
    results: dict[str, list[PromptOutputs]] = {}
    notes: list[str] = []
    refused = [PromptOutputs(int(row.key), None, (), row.error) for row in rows.errors]
    has_text, texts = llm.tokenizer is not None, dict[str | None, str | None]()
    with MovingBar("comparing", Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        ended = count(1)

        def run(name: str, prompts: Sequence[Prompt], note: str = "") -> list[PromptOutputs]:
            finished = []
            steps = llm.steps((prompt, strategies[name]) for prompt in prompts)
            for result in (result for step in steps for result in step.finished):
                kept = PromptOutputs.of(result, has_text)
                finished.append(kept._replace(text=texts.setdefault(kept.text, kept.text)))
                bar.set(next(ended), total, f"{name}{note}")
            notes[:] = llm.take_notes()
            return finished

        for name in strategies:
            run(name, rows.prompts[:warm_up_prompts], ", warming up")
        for _ in range(rounds):
            for name in strategies:
                started = time.perf_counter()
                finished = run(name, rows.prompts)
                seconds[name].append(time.perf_counter() - started)
                results[name] = sorted(finished + refused, key=lambda result: result.number)
            if timings is None and sum(map(sum, seconds.values())) > LONGEST_ROUND:
                break
    say(*notes)
    return [StrategyRun(name, results[name], seconds[name]) for name in strategies]


def run(config: CompareConfig) -> int:
    """Runs the task; returns the exit code: failed when any prompt could not be run."""
    strategies = {
        name: DecodingParams(**dataclasses.asdict(decoding)) for name, decoding in config.variants.items()
    }
    rows = config.prompt_rows()
    with LoadingLine() as line:
        llm = LLM.from_config(config, line)
    most = BATCHES_WARMED_UP * config.model.batch_size
    num_warmed_up = min(most, len(rows.prompts)) if config.warm_up else 0
    runs = run_strategies(llm, strategies, rows, num_warmed_up, config.timings)
    evaluation = compared(config, runs, num_warmed_up)
    written = [] if config.output.dir is None else _write(evaluation, config, rows.date)
    if config.output.format == "json":
        print(orjson.dumps(as_json(evaluation)).decode(), file=data_output())
    else:
        print("\n\n".join([*_texts(evaluation, config.limit), evaluation_page(evaluation)]))
    say(*(f"written {path}" for path in written))
    return _report_failures([result for run in runs for result in run.results])


def compared(config: CompareConfig, runs: Sequence[StrategyRun], num_warmed_up: int) -> Evaluation:
    """An evaluation of the strategies, the first of which is the baseline."""
    questions = [_question(results) for results in zip(*(run.results for run in runs), strict=True)]
    columns = {run.name: _measured(run) for run in runs}
    baselines = dict.fromkeys(columns, runs[0].name)
    return Evaluation(
        task="comparison",
        questions=questions,
        columns=columns,
        baselines=baselines,
        scores=scores_by(REFERENCE_FREE, columns, questions, baselines),
        settings=concealed(config.resolved_settings),
        how_timed=_how_timed(config, runs, num_warmed_up),
    )


def _question(results: Sequence[PromptOutputs]) -> Question:
    """The prompt as a strategy that could run it had it, or as it is known."""
    known = next((result for result in results if result.error is None), results[0])
    text = "a prompt that cannot run" if known.text is None else known.text
    return Question(str(known.number), f"prompts[{known.number}]", {"text": text})


def _measured(run: StrategyRun) -> MeasuredColumn:
    outputs = {result.number: result.outputs for result in run.results if result.error is None}
    num_tokens = sum(output.num_tokens for samples in outputs.values() for output in samples)
    return MeasuredColumn(
        Column(run.name, OWN_MODEL, run.name),
        outputs=outputs,
        num_tokens=num_tokens,
        speeds=[per_second(num_tokens, seconds) for seconds in run.timings],
        errors={result.number: result.error for result in run.results if result.error is not None},
    )


def _generated(output: CompletionOutput, has_text: bool) -> Generated:
    text = output.text if has_text else " ".join(map(str, output.token_ids))
    facts = {name: getattr(output, name) for name in FACTS}
    return Generated(text, array("I", output.token_ids), output.cumulative_logprob, facts)


def _how_timed(config: CompareConfig, runs: Sequence[StrategyRun], num_warmed_up: int) -> str:
    warm_up = (
        f"Before any was timed, every column ran the first {counted(num_warmed_up, 'prompt')}, so that what "
        "only first steps take, as compiling graphs where the kernels need them, is not counted."
        if num_warmed_up
        else "There was no warm-up: what only first steps take is counted, most of it for the first column."
    )
    caching = (
        "Prefix caching was on, which favours every run but the first."
        if config.runtime.prefix_caching
        else "Prefix caching was off, so that no column found its prompts in the cache."
    )
    return (
        f"Each column was timed {counted(len(runs[0].timings), 'time')}, by turns and by itself, with up to "
        f"{config.model.batch_size} sequences in a batch; the median counts. {warm_up} {caching} Tokens that "
        "a search drops again are not counted."
    )


def _texts(evaluation: Evaluation, limit: int) -> Iterator[str]:
    """The texts of the first prompts for people, a line for each."""
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


def _write(evaluation: Evaluation, config: CompareConfig, date: str | None) -> list[Path]:
    """Writes the files of the comparison; those of an earlier one are replaced. Raises StorageError."""
    folder = Path(config.output.dir or "")
    make_folder(folder)
    _, html, saved = (folder / name for name in COMPARISON_FILES)
    written = write_results(evaluation, folder, samples=True)
    write_whole(html, report_page(evaluation).encode())
    save_config(config, saved, fixed={"date": date})
    return [*written, html]


def _report_failures(results: Sequence[PromptOutputs]) -> int:
    """Says once for each prompt why it could not be run, whatever the strategies that it failed with."""
    failures = {(result.number, result.error): result.error for result in results if result.error}
    say(*(failures[key] for key in sorted(failures, key=lambda failure: failure[0])))
    return EXIT_FAILED if failures else EXIT_DONE
