"""A sequence in decoding: its tokens, the raw scores after them, and the scores that processors change."""

from __future__ import annotations

import logging
import math
import sys
from array import array
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.draws import uniform
from mindbatch.decoding.params import DecodingParams
from mindbatch.decoding.softmax import Summary, largest, likeliest_and_normalisers
from mindbatch.io.errors import PromptError
from mindbatch.io.screen_text import printable

if TYPE_CHECKING:
    from mindbatch.decoding.grammar_constraint import Constraint

FinishReason = Literal["stop", "length"]
"""stop: an end token, a stop string or a fulfilled constraint. length: the maximum length."""
_NEVER = np.float32(-np.inf)
_NO_DRAWS = np.empty(0)
NOT_FINITE = "are NaN or infinite; the model's weights or its number format do not fit"
_LONGEST = 500
_log = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class TokenChoice:
    """A token that follows a row.

    logprob: its log-probability (nats) under the model's raw logits.
    top_logprobs: log-probabilities by token, likeliest first and with `token_id`; None unless requested.
    """

    token_id: int
    logprob: float
    top_logprobs: dict[int, float] | None = None


@dataclass(slots=True, frozen=True)
class Draft:
    """Tokens that may follow a row's output.

    probabilities: the distribution [V] that each was drawn from; None if they were not drawn but are certain,
        as those found in the prompt.
    """

    token_ids: tuple[int, ...]
    probabilities: tuple[NDArray[np.float32], ...] | None = None


@dataclass(slots=True)
class Row:
    """One sequence of a step's batch; its logits are those that follow its last token.

    prompt_token_ids: the prompt, which must not change during the row's life.
    row_hash, sample_index: fix the row's random numbers; row_hash is `draws.row_hash` of `key`.
    cumulative_logprob, logprobs: log-probabilities (nats) of the output under the model's raw logits;
        `logprobs` is None unless requested.
    constraint: the state of the row's regular expression or schema. draft: tokens to verify.
    max_tokens: number of tokens of prompt and output at which the row ends; None is the limit of `params`.
    encoder_token_ids: the encoder's input, in a model that has one; the prompt is then the decoder's.
    processors: the processors that `processors.adjust` made for the row.
    """

    params: DecodingParams
    prompt_token_ids: Sequence[int]
    output_token_ids: list[int]
    eos_token_ids: tuple[int, ...]
    row_hash: int
    sample_index: int = 0
    key: str = ""
    constraint: Constraint | None = None
    draft: Draft | None = None
    cumulative_logprob: float = 0.0
    logprobs: list[dict[int, float]] | None = None
    max_tokens: int | None = None
    encoder_token_ids: tuple[int, ...] = ()
    processors: tuple[Processor, ...] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def step(self) -> int:
        """Number of output tokens so far, which is the number of the next step."""
        return len(self.output_token_ids)

    @property
    def ends_too_early(self) -> bool:
        """True if the row is still below min_length or min_new_tokens, so that it may not end."""
        prompt_length = len(self.prompt_token_ids)
        return prompt_length + self.step < self.params.min_total_tokens(prompt_length)

    @property
    def limit(self) -> int:
        """Number of tokens of prompt and output at which the row ends."""
        if self.max_tokens is not None:
            return self.max_tokens
        return self.params.max_total_tokens(len(self.prompt_token_ids), sys.maxsize)

    def append(self, choice: TokenChoice) -> None:
        self.output_token_ids.append(choice.token_id)
        self.cumulative_logprob += choice.logprob
        if choice.top_logprobs is not None:
            self.logprobs = self.logprobs or []
            self.logprobs.append(choice.top_logprobs)
        if self.constraint is not None:
            self.constraint.advance(choice.token_id)

    def fork(self) -> Row:
        """Returns an independent copy, without a draft."""
        forked = copy(self)
        forked.draft = None
        forked.output_token_ids = list(self.output_token_ids)
        forked.constraint = None if self.constraint is None else self.constraint.fork()
        forked.logprobs = None if self.logprobs is None else list(self.logprobs)
        return forked


def row_error(error: Exception, key: str) -> PromptError:
    """Returns the error that ends row `key` alone: `error` itself if it is one for users.

    Any other is unforeseen: the result names it in one line with its type, and its traceback is logged for
    --verbose.
    """
    if isinstance(error, PromptError):
        return error
    _log.info("row %s", printable(key), exc_info=error)
    text = " ".join(str(error).split())
    kind = "out of memory" if isinstance(error, MemoryError) else f"unforeseen {type(error).__name__}"
    return PromptError(printable(f"{kind}{': ' * bool(text)}{text}", _LONGEST))


class RawScores:
    """Log-probabilities of a step.

    logits: [S, V]; not changed.
    likeliest: [S], the index of each row's largest logit, the lowest among equals.
    normalisers: [S]; a row's logits minus its normaliser are log-probabilities (nats).
    """

    def __init__(
        self,
        rows: Sequence[Row],
        logits: NDArray[np.float32],
        likeliest: NDArray[np.int64],
        normalisers: NDArray[np.float64],
    ) -> None:
        """`rows` [S] are those that the logits follow. Raises NotFiniteError when logits are not."""
        self.logits = logits
        self.likeliest, self.normalisers = likeliest, normalisers
        self._rows = rows
        errors = [
            f"{row.key}: the logits after {row.step} tokens of output {NOT_FINITE}"
            for row, normaliser in zip(rows, normalisers.tolist(), strict=True)
            if not math.isfinite(normaliser)
        ]
        if errors:
            raise NotFiniteError(dict.fromkeys(errors))

    @classmethod
    def of(cls, rows: Sequence[Row], logits: NDArray[np.float32], summary: Summary) -> RawScores:
        return cls(rows, logits, *likeliest_and_normalisers(logits, summary))

    def choice(self, index: int, token_id: int) -> TokenChoice:
        """Returns the token after a row of the step, with the log-probabilities that the row requests."""
        normaliser, count = float(self.normalisers[index]), self._rows[index].params.logprobs
        top = None if count is None else top_logprobs(self.logits[index], normaliser, token_id, count)
        return TokenChoice(token_id, float(self.logits[index, token_id]) - normaliser, top)


def token_logprobs(
    logits: NDArray[np.float32], token_ids: NDArray[np.int64], count: int
) -> list[dict[int, float]]:
    """Returns `top_logprobs` for each row of `logits` [S, V].

    token_ids: [S], the tokens that followed; in a prompt, row i scores token i + 1.
    """
    normalisers = likeliest_and_normalisers(logits)[1]
    rows = zip(logits, normalisers, token_ids, strict=True)
    return [top_logprobs(row, normaliser, int(token), count) for row, normaliser, token in rows]


def top_logprobs(
    logits: NDArray[np.float32], normaliser: float, token_id: int, count: int
) -> dict[int, float]:
    """Returns log-probabilities of the `count` likeliest tokens of `logits` [V], in order, and of
    `token_id`."""
    tokens = [int(token) for token in largest(logits, count)]
    if token_id not in tokens:
        tokens.append(token_id)
    return {token: float(logits[token]) - float(normaliser) for token in tokens}


class NotFiniteError(PromptError):
    """Raised for logits after a row that are not finite: an error of the row, unless all rows have it."""


class NoTokenLeftError(PromptError):
    """Raised if a row's processors forbid every token; a search may drop the row and continue with others."""


class DecodingStep:
    """The scores [V] of one row, copied when they are first changed.

    scores: read only; `writable` returns them for writing.
    """

    __slots__ = ("_allowed", "_forbidding", "_original", "_output", "row", "scores")

    def __init__(self, scores: NDArray[np.float32], row: Row) -> None:
        self.row = row
        self.scores = scores
        self._original = scores
        self._forbidding: list[str] = []
        self._output: NDArray[np.int64] | None = None
        self._allowed: NDArray[np.bool_] | None = None

    @property
    def length(self) -> int:
        """Number of tokens of prompt and output."""
        return len(self.row.prompt_token_ids) + self.row.step

    @property
    def output(self) -> NDArray[np.int64]:
        if self._output is None:
            self._output = token_array(self.row.output_token_ids)
        return self._output

    def latest(self, count: int) -> tuple[int, ...]:
        """Returns the last `count` tokens of prompt and output, or all if they are fewer."""
        output = self.row.output_token_ids
        missing = count - len(output)
        if missing <= 0:
            return tuple(output[-missing:])
        return (*self.row.prompt_token_ids[-missing:], *output)

    @property
    def allowed(self) -> NDArray[np.bool_] | None:
        """Mask [V] of the tokens that the row's constraint allows; None if it has no constraint."""
        if self._allowed is None and self.row.constraint is not None:
            self._allowed = self.row.constraint.allowed(self.row.eos_token_ids)
        return self._allowed

    def writable(self) -> NDArray[np.float32]:
        """Returns the scores for writing, copied on the first call."""
        if self.scores is self._original:
            self.scores = self._original.copy()
        return self.scores

    def forbid(self, token_ids: NDArray[np.int64], by: str) -> None:
        """Sets scores of tokens to minus infinity; ignores ids of V or more. `by` names the parameter."""
        known = token_ids[token_ids < self.scores.size]
        if known.size:
            self.writable()[known] = _NEVER
            self._forbidding.append(by)

    def allow_only(self, allowed: NDArray[np.bool_], by: str) -> None:
        """Sets the scores of all tokens but the `allowed` [V] to minus infinity."""
        ceilings = (allowed - np.float32(0.5)) * np.float32(np.inf)  # np.where takes ten times as long
        self.scores = np.minimum(self.scores, ceilings, out=ceilings)
        self._forbidding.append(by)

    def force(self, token_ids: Sequence[int], by: str) -> None:
        """Sets the scores of `token_ids` to 0 and all others to minus infinity."""
        self.scores = np.full_like(self.scores, _NEVER)
        self.scores[list(token_ids)] = 0
        self._forbidding = [by]

    def result(self) -> NDArray[np.float32]:
        """Returns the scores; raises NoTokenLeftError if all are minus infinity."""
        if self._forbidding and self.scores.max() == _NEVER:
            raise NoTokenLeftError(
                f"{self.row.key}: no token is left for position {self.row.step} of output "
                f"{self.row.sample_index}: forbidden by {', '.join(dict.fromkeys(self._forbidding))}; "
                "relax one of them"
            )
        return self.scores


Processor = Callable[[DecodingStep], None]
"""Changes a step's scores. A row and its forks share it, so it keeps no state of the output."""


def token_array(token_ids: Sequence[int]) -> NDArray[np.int64]:
    """Returns token ids as a read-only array."""
    return np.frombuffer(array("q", token_ids), dtype=np.int64)


def row_uniforms(
    rows: Sequence[Row], draws: Sequence[Sequence[tuple[int, int]]], stream: int = 0
) -> list[NDArray[np.float64]]:
    """Returns a uniform number for each draw (sample, step) of each row; none for a greedy row."""
    draws = [() if row.params.greedy else own for row, own in zip(rows, draws, strict=True)]
    words = [
        (row.params.seed, row.row_hash, sample, step)
        for row, row_draws in zip(rows, draws, strict=True)
        for sample, step in row_draws
    ]
    if not words:
        return [_NO_DRAWS] * len(rows)
    seeds, hashes, samples, steps = zip(*words, strict=True)
    numbers = uniform(seeds, hashes, samples, steps, stream)
    counts = [*map(len, draws)]
    return [numbers[end - count : end] for count, end in zip(counts, accumulate(counts), strict=True)]
