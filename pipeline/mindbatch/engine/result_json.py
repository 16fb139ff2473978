"""Results as JSON: what a ledger keeps of one, and what every line of results says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mindbatch.engine.request import CompletionOutput, RequestOutput

STRATEGY_FIELDS = ("score", "rank", "drafted_tokens", "accepted_tokens")
"""Fields that a generation has only where its strategy ranks or drafts."""
EMBEDDING = "embedding"
"""The field of a generation that is one."""
GENERATION_FIELDS = (
    *("index", "text", "token_ids", "finish_reason", "tokens", "cumulative_logprob"),
    *(*STRATEGY_FIELDS, EMBEDDING, "logprobs"),
)
"""Fields that a generation can have in results, in their order."""


def result_body(output: RequestOutput) -> dict[str, Any]:
    """The content of a result. It does not depend on when or with what it was computed."""
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
    """The fields that a line of results has of a body.

    They are generations, prompt_tokens, generated_tokens and, where they were asked for, prompt_logprobs. A
    generation has index, text, token_ids (if wanted), finish_reason, tokens, cumulative_logprob and, where
    they were asked for, logprobs; of a search that ranks, score and rank; of speculative decoding,
    drafted_tokens and accepted_tokens; in place of text, embedding. There are no times: a resumed run writes
    what an unbroken one does.
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
    """The tokens of all generations of a row."""
    return sum(len(generation["token_ids"]) for generation in generations)


def generation_fields(body: Mapping[str, Any], token_ids: bool) -> dict[str, Any]:
    """The GENERATION_FIELDS that a generation has."""
    generation = {"index": body["index"], "text": body["text"]}
    if token_ids:
        generation["token_ids"] = body["token_ids"]
    generation["finish_reason"] = body["finish_reason"]
    generation["tokens"] = len(body["token_ids"])
    generation["cumulative_logprob"] = body["cumulative_logprob"]
    generation |= {name: body[name] for name in (*STRATEGY_FIELDS, EMBEDDING) if name in body}
    if body.get("logprobs") is not None:
        generation["logprobs"] = body["logprobs"]
    return generation
