"""The measures of one strategy's outputs, of all prompts or of some of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mindbatch.engine.request import CompletionOutput
from mindbatch.evaluation.metrics import distinct_share, mean, ngrams, perplexity, repetition

NGRAMS = (1, 2, 3)


@dataclass(frozen=True)
class Metrics:
    """The measures of all outputs of a strategy; None where there is too little to measure.

    logprob: mean of the outputs' sums, in nats. logprob_per_token, perplexity: of all tokens together.
    distinct_*, repetition: of as many outputs and tokens for each prompt as every strategy has; repetition is
    the mean over the outputs. seconds: median of the timings. tokens_per_second: of the tokens returned.
    """

    num_outputs: int
    num_tokens: int
    logprob: float | None
    logprob_per_token: float | None
    perplexity: float | None
    distinct_1: float | None
    distinct_2: float | None
    distinct_3: float | None
    self_bleu: float | None
    repetition: float | None
    seconds: float
    tokens_per_second: float


@dataclass(frozen=True)
class PromptParts:
    """Inputs of a strategy's measures from one prompt.

    logprobs: of each output. ngrams, repetitions: of the outputs cut to `Extent`; ngrams[n - 1] has the
    n-grams.
    """

    logprobs: list[float]
    num_tokens: int
    ngrams: list[list[tuple[int, ...]]]
    repetitions: list[float | None]


@dataclass(frozen=True)
class Extent:
    """Amount of each strategy's outputs compared for a prompt, so that none is judged by more text.

    Distinct n-grams get rarer, and repeated ones more frequent, as a text gets longer.
    """

    num_outputs: int
    num_tokens: int

    @classmethod
    def common(cls, strategies: Sequence[Sequence[CompletionOutput]]) -> Extent:
        """Takes what all strategies have of one prompt: the fewest outputs, and the shortest of those.

        strategies: the outputs of each strategy; an empty list where it could not run the prompt.
        """
        num_outputs = min(map(len, strategies))
        lengths = [len(output.token_ids) for outputs in strategies for output in outputs[:num_outputs]]
        return cls(num_outputs, min(lengths, default=0))


def parts_of(outputs: Sequence[CompletionOutput], extent: Extent) -> PromptParts:
    """Extracts what the measures take from a strategy's outputs for one prompt."""
    cut = [output.token_ids[: extent.num_tokens] for output in outputs[: extent.num_outputs]]
    return PromptParts(
        logprobs=[output.cumulative_logprob for output in outputs],
        num_tokens=sum(len(output.token_ids) for output in outputs),
        ngrams=[[ngram for tokens in cut for ngram in ngrams(tokens, n)] for n in NGRAMS],
        repetitions=[repetition(tokens) for tokens in cut],
    )


def _logprob_sum(parts: Sequence[PromptParts]) -> float:
    return sum(sum(part.logprobs) for part in parts)


def _logprob_per_token(parts: Sequence[PromptParts]) -> float | None:
    num_tokens = sum(part.num_tokens for part in parts)
    return _logprob_sum(parts) / num_tokens if num_tokens else None


def _distinct(n: int) -> Callable[[Sequence[PromptParts]], float | None]:
    return lambda parts: distinct_share([part.ngrams[n - 1] for part in parts])


STATISTICS: dict[str, Callable[[Sequence[PromptParts]], float | None]] = {
    "perplexity": lambda parts: perplexity(_logprob_sum(parts), sum(part.num_tokens for part in parts)),
    "logprob": lambda parts: mean([logprob for part in parts for logprob in part.logprobs]),
    "logprob_per_token": _logprob_per_token,
    "distinct_1": _distinct(1),
    "distinct_2": _distinct(2),
    "distinct_3": _distinct(3),
    "repetition": lambda parts: mean([share for part in parts for share in part.repetitions]),
}
"""Each measure that can be taken of any choice of prompts, by its field of `comparison.Metrics`."""
