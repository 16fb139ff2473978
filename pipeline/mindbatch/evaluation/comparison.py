"""Outputs of several strategies for the same prompts, with the measures of each and of all."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

import orjson

from mindbatch.decoding import DecodingParams
from mindbatch.decoding.registry import strategy_name
from mindbatch.engine.request import CompletionOutput, RequestOutput
from mindbatch.evaluation.measured import STATISTICS, Extent, Metrics, PromptParts, parts_of
from mindbatch.evaluation.measures import MEASURES
from mindbatch.evaluation.metrics import mean, perplexity, repetition, self_bleu
from mindbatch.evaluation.noise import Interval, fastest, resampled
from mindbatch.io.hidden_values import concealed

FORMAT = 2
"""Version of the JSON; it changes when a field is renamed, removed or means something else."""

Among = Literal["samples", "prompts"]


@dataclass(frozen=True)
class Setup:
    """Settings that all strategies ran with.

    model: the model's folder. created: ISO 8601, UTC. warm_up_prompts: prompts that each strategy ran untimed
    before; 0 is no warm-up, and tokens/s counts what only first steps take.
    """

    model: str
    created: str
    batch_size: int
    prefix_caching: bool
    warm_up_prompts: int


@dataclass(frozen=True)
class StrategyRun:
    """One strategy's results, in the order of the prompts, and the seconds of each time it ran them all."""

    name: str
    params: DecodingParams
    results: Sequence[RequestOutput]
    timings: Sequence[float]


@dataclass(frozen=True)
class MeasuredOutput:
    """One continuation. See `engine.request.CompletionOutput` and `metrics` for the fields."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str
    logprob: float
    logprob_per_token: float | None
    perplexity: float | None
    repetition: float | None
    score: float | None
    rank: int | None
    num_drafted_tokens: int
    num_accepted_tokens: int

    @classmethod
    def of(cls, output: CompletionOutput, has_text: bool) -> MeasuredOutput:
        """The output with its measures; without a tokenizer its text is its token ids."""
        tokens, logprob = output.token_ids, output.cumulative_logprob
        return cls(
            index=output.index,
            text=output.text if has_text else " ".join(map(str, tokens)),
            token_ids=tokens,
            finish_reason=output.finish_reason,
            logprob=logprob,
            logprob_per_token=logprob / len(tokens) if tokens else None,
            perplexity=perplexity(logprob, len(tokens)),
            repetition=repetition(tokens),
            score=output.score,
            rank=output.rank,
            num_drafted_tokens=output.num_drafted_tokens,
            num_accepted_tokens=output.num_accepted_tokens,
        )


@dataclass(frozen=True)
class PromptOutputs:
    """Outputs of a strategy for one prompt, or why it could not be run."""

    key: str
    error: str | None
    outputs: list[MeasuredOutput]


@dataclass(frozen=True)
class StrategyReport:
    """One strategy. name: the option. strategy: its kind. decoding: its values that are no defaults.

    intervals: by measure, between which its value lies with 95% confidence; of tokens_per_second the slowest
    and the fastest timing. A measure of which nothing can be told is not there.
    """

    name: str
    strategy: str
    decoding: dict[str, Any]
    metrics: Metrics
    intervals: dict[str, Interval]
    timings: list[float]
    prompts: list[PromptOutputs]

    @property
    def errors(self) -> int:
        """Prompts that it could not run."""
        return sum(row.error is not None for row in self.prompts)


@dataclass(frozen=True)
class PromptReport:
    """A prompt as it was given; `prompt` is None for one of token ids, or a chat."""

    key: str
    prompt: str | None
    prompt_token_ids: list[int]


@dataclass(frozen=True)
class Comparison:
    """All strategies over all prompts.

    self_bleu_among: which texts self-BLEU compares, the same for all strategies: the samples of each prompt
    if there are always several, else the first outputs of all prompts.
    tokens_compared: tokens of each strategy that distinct_* and repetition are measured on.
    leaders: by measure, the strategies that are not behind the best one beyond noise; a measure in which this
    cannot be told, for too few prompts or timings, is not there.
    """

    setup: Setup
    self_bleu_among: Among
    tokens_compared: int
    leaders: dict[str, list[str]]
    prompts: list[PromptReport]
    strategies: list[StrategyReport]

    def as_json(self) -> bytes:
        """The comparison as `docs/evaluate.md` describes it; what is not finite is null."""
        content = {"format": FORMAT, **dataclasses.asdict(self)}
        return orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS)


def compare(setup: Setup, runs: Sequence[StrategyRun], *, has_text: bool = True) -> Comparison:
    """Measures the runs, which have the same prompts in the same order; there is at least one run.

    has_text: False where there is no tokenizer; token ids stand for the words.
    """
    done = [result for run in runs for result in run.results if result.error is None]
    always_several = bool(done) and all(len(result.outputs) > 1 for result in done)
    among: Among = "samples" if always_several else "prompts"
    by_prompt = list(zip(*(run.results for run in runs), strict=True))
    extents = [Extent.common([result.outputs for result in results]) for results in by_prompt]
    parts = {
        run.name: [
            parts_of(result.outputs, extent) for result, extent in zip(run.results, extents, strict=True)
        ]
        for run in runs
    }
    intervals, leaders = _told_apart(parts, runs)
    return Comparison(
        setup=setup,
        self_bleu_among=among,
        tokens_compared=sum(extent.num_outputs * extent.num_tokens for extent in extents),
        leaders=leaders,
        prompts=[_prompt(results) for results in by_prompt],
        strategies=[_report(run, parts[run.name], intervals[run.name], among, has_text) for run in runs],
    )


def _told_apart(
    parts: Mapping[str, Sequence[PromptParts]], runs: Sequence[StrategyRun]
) -> tuple[dict[str, dict[str, Interval]], dict[str, list[str]]]:
    """The intervals of each strategy, and the leaders in each measure."""
    intervals: dict[str, dict[str, Interval]] = {run.name: {} for run in runs}
    speeds = {run.name: _speeds(run, parts[run.name]) for run in runs}
    leaders: dict[str, list[str] | None] = {"tokens_per_second": fastest(speeds)}
    for measure in MEASURES:
        if measure.field not in STATISTICS:
            continue
        found = resampled(parts, measure.field)
        leaders[measure.field] = found.leaders(measure.best)
        for name, known in intervals.items():
            if interval := found.interval(name):
                known[measure.field] = interval
    for name, each in speeds.items():
        if len(each) > 1:
            intervals[name]["tokens_per_second"] = min(each), max(each)
    return intervals, {field: names for field, names in leaders.items() if names is not None}


def _speeds(run: StrategyRun, parts: Sequence[PromptParts]) -> list[float]:
    """Tokens/s of each timing."""
    num_tokens = sum(part.num_tokens for part in parts)
    return [num_tokens / seconds if seconds > 0 else 0.0 for seconds in run.timings]


def _prompt(results: Sequence[RequestOutput]) -> PromptReport:
    """The prompt as a strategy that could run it had it, or as it is known."""
    known = next((result for result in results if result.error is None), results[0])
    return PromptReport(known.key, known.prompt, known.prompt_token_ids)


def _report(
    run: StrategyRun,
    parts: Sequence[PromptParts],
    intervals: dict[str, Interval],
    among: Among,
    has_text: bool,
) -> StrategyReport:
    prompts = [
        PromptOutputs(
            result.key, result.error, [MeasuredOutput.of(each, has_text) for each in result.outputs]
        )
        for result in run.results
    ]
    return StrategyReport(
        name=run.name,
        strategy=strategy_name(run.params),
        decoding=concealed(_settings(run.params)),
        metrics=_metrics(prompts, parts, median(run.timings), among),
        intervals=intervals,
        timings=list(run.timings),
        prompts=prompts,
    )


def _metrics(
    prompts: Sequence[PromptOutputs], parts: Sequence[PromptParts], seconds: float, among: Among
) -> Metrics:
    num_tokens = sum(part.num_tokens for part in parts)
    return Metrics(
        num_outputs=sum(len(row.outputs) for row in prompts),
        num_tokens=num_tokens,
        self_bleu=_self_bleu(prompts, among),
        seconds=seconds,
        tokens_per_second=num_tokens / seconds if seconds > 0 else 0.0,
        **{field: statistic(parts) for field, statistic in STATISTICS.items()},
    )


def _self_bleu(prompts: Sequence[PromptOutputs], among: Among) -> float | None:
    if among == "samples":
        return mean([self_bleu([output.text for output in row.outputs]) for row in prompts])
    return self_bleu([row.outputs[0].text for row in prompts if row.outputs])


def _settings(params: DecodingParams) -> dict[str, Any]:
    """The parameters that differ from their defaults, but for a function, which JSON cannot hold."""
    return {
        field.name: value
        for field in dataclasses.fields(params)
        if (value := getattr(params, field.name)) != field.default and not callable(value)
    }
