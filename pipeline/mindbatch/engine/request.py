"""Requests to the engine, its outputs, and these as JSON, for the ledger and for lines of results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mindbatch.decoding import DecodingParams
from mindbatch.io.errors import PromptError

if TYPE_CHECKING:
    from mindbatch.decoding.row import FinishReason

PROMPT_STAGE = "prompt"
"""The stage of errors that the tokenizer or the engine finds."""


@dataclass(frozen=True)
class Request:
    """One prompt to continue.

    key: the unique name of the request in the engine.
    row_key: fixes the random numbers, together with seed, sample and step; empty means `key`.
    adapter: the name of the LoRA adapter that computes it; None is the base model.
    source: the name of the prompt in errors; empty means `key`.
    """

    key: str
    prompt_token_ids: tuple[int, ...]
    params: DecodingParams
    prompt: str | None = None
    adapter: str | None = None
    source: str = ""
    row_key: str = ""

    def failure(self, error: PromptError) -> RequestOutput:
        return RequestOutput.failed(self.key, f"{self.source or self.key}: {self.reason(error)}", self.prompt)

    def reason(self, error: PromptError) -> str:
        """Returns the reason in an error that the engine raised for this prompt, without its key."""
        return "; ".join(problem.removeprefix(f"{self.key}: ") for problem in error.lines)


@dataclass
class CompletionOutput:
    """One continuation of a prompt.

    index: number of the sample; in a search, the rank by score, the best being 0.
    token_ids: the generated tokens, an end-of-sequence token included.
    cumulative_logprob: sum of the tokens' log-probabilities (nats) under the model's raw logits.
    logprobs: for each token, log-probabilities of the likeliest tokens and of the chosen one; None unless
        requested.
    score: the score that a search ranks it by; None where nothing is ranked.
    rank: 1 for the best score; None where nothing is ranked.
    embedding: the normalized embedding of the prompt, where that is requested instead of text.
    num_drafted_tokens, num_accepted_tokens: tokens that speculative decoding drafted, and those of them that
        the output has.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    cumulative_logprob: float
    logprobs: list[dict[int, float]] | None = None
    score: float | None = None
    rank: int | None = None
    embedding: list[float] | None = None
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0


@dataclass
class RequestOutput:
    """Result of a request: all continuations of its prompt, or the reason why there are none.

    An error may come before the first token or after some; `outputs` is empty then.

    prompt_logprobs: one entry per prompt token from `prompt_logprobs_start` on; None for the first of the
        prompt, which nothing precedes.
    error: the reason why the prompt could not be run, or not be finished.
    stage: the stage of processing in which the error occurred, as in `RowFailure`.
    seconds: time from adding the request to its last token.
    num_cached_tokens: number of prompt tokens that were found in the cache and not computed.
    adapter: the name of the LoRA adapter that computed it; None is the base model.
    """

    key: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput] = field(default_factory=list)
    prompt_logprobs: list[dict[int, float] | None] | None = None
    error: str | None = None
    seconds: float = 0.0
    num_cached_tokens: int = 0
    adapter: str | None = None
    stage: str = PROMPT_STAGE

    @classmethod
    def failed(
        cls, key: str, error: str, prompt: str | None = None, stage: str = PROMPT_STAGE
    ) -> RequestOutput:
        return cls(key, prompt, [], error=error, stage=stage)


@dataclass(frozen=True)
class StreamEvent:
    """New text and tokens of one sequence in one step.

    index: number of the sample in its request. A search has an event for each of its outputs, which begin
        with the same text.
    text: the characters that have become certain; may be empty.
    token_ids: the tokens of this step: several where drafted tokens were accepted, or where all hypotheses of
        a search agree on them.
    finish_reason: set on the last event of the sequence.
    logprobs: log-probabilities for each of these tokens, as in the output; None unless requested.
    """

    key: str
    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    logprobs: tuple[dict[int, float], ...] | None = None


def in_order(results: Iterable[RequestOutput], on_error: str) -> list[RequestOutput]:
    """Returns the results in the order of the prompts.

    Raises:
        PromptError: on_error is "raise" and a result has an error.
    """
    ordered = sorted(results, key=lambda result: int(result.key))
    if on_error == "raise":
        refuse_failed(ordered)
    return ordered


def refuse_failed(results: Iterable[RequestOutput]) -> None:
    """Raises a PromptError with the errors of the results, if there are any."""
    errors = [result.error for result in results if result.error is not None]
    if errors:
        raise PromptError(errors)


STRATEGY_FIELDS = ("score", "rank", "drafted_tokens", "accepted_tokens")
"""Fields of a generation whose strategy ranks or drafts."""
EMBEDDING = "embedding"
"""The field of a generation that is an embedding."""
GENERATION_FIELDS = (
    *("index", "text", "token_ids", "finish_reason", "tokens", "cumulative_logprob"),
    *(*STRATEGY_FIELDS, EMBEDDING, "logprobs"),
)
"""Fields that a generation can have in results, in their order."""


def result_body(output: RequestOutput) -> dict[str, Any]:
    """Returns the content of a result, which does not depend on when or beside which rows it was computed."""
    body: dict[str, Any] = {
        "generations": [_generation_body(completion) for completion in output.outputs],
        "prompt_tokens": len(output.prompt_token_ids),
    }
    if output.prompt_logprobs is not None:
        body["prompt_logprobs"] = output.prompt_logprobs
    return body


def _generation_body(output: CompletionOutput) -> dict[str, Any]:
    generation: dict[str, Any] = {
        "index": output.index,
        "text": output.text,
        "token_ids": output.token_ids,
        "finish_reason": output.finish_reason,
        "cumulative_logprob": output.cumulative_logprob,
    }
    if output.score is not None:
        generation |= {"score": output.score, "rank": output.rank}
    if output.embedding is not None:
        generation[EMBEDDING] = output.embedding
    if output.num_drafted_tokens:
        generation["drafted_tokens"] = output.num_drafted_tokens
        generation["accepted_tokens"] = output.num_accepted_tokens
    if output.logprobs is not None:
        generation["logprobs"] = output.logprobs
    return generation


def result_fields(body: Mapping[str, Any], token_ids: bool) -> dict[str, Any]:
    """Returns the fields of a line of results.

    They are generations, prompt_tokens, generated_tokens and, if requested, prompt_logprobs. A generation has
    index, text, token_ids (if wanted), finish_reason, tokens, cumulative_logprob and, if requested, logprobs;
    a ranked search adds score and rank, speculative decoding drafted_tokens and accepted_tokens; an embedding
    has the field embedding instead of text. There are no times: a resumed run writes what an unbroken one
    does.
    """
    generations = body["generations"]
    fields = {
        "generations": [generation_fields(generation, token_ids) for generation in generations],
        "prompt_tokens": body["prompt_tokens"],
        "generated_tokens": num_generated_tokens(generations),
    }
    if body.get("prompt_logprobs") is not None:
        fields["prompt_logprobs"] = body["prompt_logprobs"]
    return fields


def num_generated_tokens(generations: Sequence[Mapping[str, Any]]) -> int:
    return sum(len(generation["token_ids"]) for generation in generations)


def generation_fields(body: Mapping[str, Any], token_ids: bool) -> dict[str, Any]:
    values = {**body, "tokens": len(body["token_ids"])}
    if not token_ids:
        del values["token_ids"]
    return {name: values[name] for name in GENERATION_FIELDS if values.get(name) is not None}
