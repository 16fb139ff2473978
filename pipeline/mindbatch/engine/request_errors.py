"""Errors of a request that an engine cannot run, found before it is queued."""

from collections.abc import Iterator

from mindbatch.decoding.parameter import shortest_error
from mindbatch.engine.request import Request
from mindbatch.engine.settings import EngineSettings


def request_errors(
    request: Request, max_tokens: int, settings: EngineSettings, vocab_size: int, has_assistant: bool
) -> Iterator[str]:
    """Yields a line for each error, without the request's key.

    max_tokens: maximum number of tokens of prompt and output together.
    """
    num_tokens = len(request.prompt_token_ids)
    if not num_tokens:
        yield "the prompt has no tokens; at least one is needed to continue from"
    num_started = 0
    if settings.decoder_start_id is not None:
        num_started = 1
        yield from _errors_of_an_encoder(request)
    if max_tokens <= num_tokens + num_started:
        yield (
            f"the prompt has {num_tokens} tokens and prompt and output together may have {max_tokens}; "
            f"{_longer(max_tokens, settings)}"
        )
    if error := shortest_error(request.params, settings.seq_length):
        yield error
    if (start := request.params.prompt_logprobs_start) >= num_tokens:
        yield (
            f"decoding.prompt_logprobs_start={start}: the prompt has {num_tokens} tokens; allowed: 0 to "
            f"{num_tokens - 1}"
        )
    yield from _token_errors(request, settings, vocab_size)
    yield from _draft_errors(request, settings, has_assistant)


def _errors_of_an_encoder(request: Request) -> Iterator[str]:
    if request.params.prompt_logprobs is not None:
        yield (
            f"decoding.prompt_logprobs={request.params.prompt_logprobs}: the prompt is the input of an "
            "encoder, which gives its tokens no probabilities; remove it"
        )
    if request.params.pooling is not None:
        yield "decoding.pooling: not of a model with an encoder; remove it"


def _token_errors(request: Request, settings: EngineSettings, vocab_size: int) -> Iterator[str]:
    prompt = request.prompt_token_ids
    named = [("", token) for token in prompt]
    named += [(f"decoding.{name}: ", token) for name, token in request.params.token_ids()]
    for name, token in named:
        if not 0 <= token < vocab_size:
            yield f"{name}token id {token} is outside the vocabulary; allowed: 0 to {vocab_size - 1}"
    for token, name in settings.placeholders:
        if token in prompt:
            yield (
                f"token id {token} at position {prompt.index(token)} is the {name} of the model, which marks "
                "an image, sound or video; prompts of text alone are computed"
            )


def _draft_errors(request: Request, settings: EngineSettings, has_assistant: bool) -> Iterator[str]:
    if request.params.num_draft_tokens and not settings.use_past:
        yield (
            "speculative decoding needs model.use_past=true; set it, or leave decoding.num_assistant_tokens "
            "and decoding.prompt_lookup_num_tokens out"
        )
    if request.params.num_assistant_tokens and not has_assistant:
        yield (
            f"decoding.num_assistant_tokens={request.params.num_assistant_tokens} needs an assistant; give "
            "model.assistant=FOLDER or use decoding.prompt_lookup_num_tokens"
        )


def _longer(max_tokens: int, settings: EngineSettings) -> str:
    """Returns the remedy for a prompt that reaches `max_tokens`, by the limit that it is."""
    if max_tokens < settings.seq_length:
        return f"shorten it or raise decoding.max_length={max_tokens}"
    if max_tokens == settings.max_positions:
        return "shorten it: the model has no more positions"
    limit = f" (the model has {settings.max_positions} positions)" if settings.max_positions else ""
    return f"shorten it or raise model.seq_length={max_tokens}{limit}"
