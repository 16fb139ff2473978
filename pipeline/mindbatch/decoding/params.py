"""DecodingParams: how one request's tokens are chosen and when it ends."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindbatch.decoding import token_kinds
from mindbatch.decoding.model_defaults import model_defaults
from mindbatch.decoding.parameter import (
    BEAM_GROUPS,
    BEAMS,
    EMBEDDING,
    ENDS,
    FREE_BEGINNING,
    LOOKUP,
    RANKING,
    SAMPLING,
    SCORED_PROMPT,
    TOP_K,
    WARMTH,
    Asks,
    combination_errors,
    other_names,
    parameter,
    parameters_of,
    with_other_names,
)
from mindbatch.fields import kinds as kind
from mindbatch.io.error_lines import shown_parameter
from mindbatch.io.errors import ConfigError

AllowedTokens = Callable[[str, Sequence[int]], Iterable[int]]
DEFAULT_NEW_TOKENS = 128
"""Maximum number of new tokens of a request with neither max_length nor max_new_tokens."""
MAX_LOGPROBS = 100
"""Maximum number of log-probabilities of a position."""
MAX_SAMPLES, MAX_BEAMS, MAX_DRAFTED = 1 << 16, 1 << 12, 1 << 10
"""Far above any use, and far below the counters of the random generator."""
LARGEST_EXPONENT = 20
"""Largest exponent of a length: a million tokens to this power are still a float."""


def _filter(default: float, values: kind.ValueKind, meaning: str, **more: Any) -> Any:
    """Declares a parameter that narrows the tokens that sampling chooses among."""
    return parameter(default, values, meaning, needs=(SAMPLING, WARMTH), is_filter=True, **more)


def _users_own(default: Any, values: kind.ValueKind, meaning: str, **more: Any) -> Any:
    """Declares a parameter for which a model's generation_config.json may not recommend a value."""
    return parameter(default, values, meaning, of_model=False, **more)


@with_other_names
@dataclass(frozen=True, kw_only=True)
class DecodingParams:
    """Decoding parameters under their Hugging Face names, declared by `parameter`.

    Raises ConfigError with all errors at once, in the order of the parameters.
    """

    do_sample: bool = parameter(
        False, kind.flag(), "draw at random; false takes the most likely token", topic="Sampling"
    )
    temperature: float = parameter(
        1.0,
        kind.number(
            "0 (greedy) or from 0.000001 to 1000000",
            lambda t: t == 0 or token_kinds.SMALLEST_FACTOR <= t <= token_kinds.LARGEST_FACTOR,
        ),
        "divides the logits; 0 is greedy",
        needs=(SAMPLING,),
        idle=0.0,  # without sampling it says what is done anyway
        openai=("temperature",),
    )
    top_k: int = parameter(
        0,
        kind.whole(0),
        "keep the k most likely tokens; 0: off. Contrastive search chooses among them",
        needs=TOP_K,
        is_filter=True,
        openai=("top_k",),
    )
    top_p: float = _filter(
        1.0, kind.share(), "keep the smallest set holding this probability; 1: off", openai=("top_p",)
    )
    min_p: float = _filter(
        0.0, kind.span(0, 1), "drop tokens below this share of the most likely one; 0: off", openai=("min_p",)
    )
    top_h: float = _filter(
        1.0, kind.share(), "keep the likeliest tokens up to this share of the entropy; 1: off"
    )
    top_n_sigma: float = _filter(
        0.0,
        kind.span(0, token_kinds.LARGEST_FACTOR),
        "keep tokens whose logit is within n standard deviations of the largest; 0: off",
    )
    typical_p: float = _filter(
        1.0, kind.share(), "keep the most typical tokens up to this probability; 1: off"
    )
    epsilon_cutoff: float = _filter(0.0, token_kinds.cutoff(), "drop tokens less likely than this; 0: off")
    eta_cutoff: float = _filter(
        0.0, token_kinds.cutoff(), "the same with a bound that falls with the entropy; 0: off"
    )
    seed: int = _users_own(
        0,
        token_kinds.seed(),
        "of the random draws; the same seed and prompt give the same text. random draws one and tells it",
        openai=("seed",),
    )
    num_beams: int = parameter(
        1,
        kind.whole(1, MAX_BEAMS),
        "hypotheses that beam search keeps; 1: no beam search",
        asks=Asks("beam search", outputs="value"),
        widens=True,
        topic="Searches: beams, contrastive, ranking",
    )
    num_beam_groups: int = parameter(
        1,
        kind.whole(1, MAX_BEAMS),
        "groups of beams that are pushed apart; must divide num_beams; 1: off",
        needs=(BEAMS,),
        asks=Asks("group beam search", samples=False, form_of="num_beams"),
    )
    diversity_penalty: float = parameter(
        0.0,
        kind.span(0, token_kinds.LARGEST_FACTOR),
        "off a token's score for each beam of earlier groups that chose it",
        needs=(BEAM_GROUPS,),
    )
    length_penalty: float = parameter(
        1.0,
        kind.span(-LARGEST_EXPONENT, LARGEST_EXPONENT),
        "of beams and candidates: above 0 favours long outputs",
        needs=(RANKING,),
        openai=("length_penalty",),
    )
    early_stopping: bool | str = parameter(
        False,
        kind.flag_or("never"),
        "beam search ends at num_beams finished, or (false, never) when better ones are unlikely, impossible",
        needs=(BEAMS,),
        openai=("early_stopping",),
    )
    penalty_alpha: float = parameter(
        0.0,
        kind.span(0, 1),
        "contrastive search among top_k tokens: weight of its penalty; 0: off",
        asks=Asks("contrastive search", samples=False, outputs="one"),
    )
    best_of: int | None = _users_own(
        None,
        kind.whole(1, MAX_SAMPLES, optional=True),
        "sample-and-rank: candidates to sample; the best are returned",
        needs=(SAMPLING, WARMTH),
        asks=Asks("sample-and-rank", outputs="value"),
        widens=True,
    )
    num_assistant_tokens: int = _users_own(
        0,
        kind.whole(0, MAX_DRAFTED),
        "tokens that model.assistant drafts for each step; 0: off",
        asks=Asks("speculative decoding with an assistant"),
        widens=True,
        topic="Speculative decoding",
    )
    prompt_lookup_num_tokens: int = _users_own(
        0,
        kind.whole(0, MAX_DRAFTED),
        "tokens drafted from the text so far, for each step; 0: off",
        asks=Asks("speculative decoding by prompt lookup"),
        widens=True,
    )
    max_matching_ngram_size: int = _users_own(
        2, kind.whole(1), "longest n-gram that prompt lookup searches for", needs=(LOOKUP,)
    )
    repetition_penalty: float = parameter(
        1.0,
        kind.span(token_kinds.SMALLEST_FACTOR, token_kinds.LARGEST_FACTOR),
        "above 1 makes tokens already seen less likely; 1: off",
        openai=("repetition_penalty",),
        topic="Penalties, biases and bans",
    )
    encoder_repetition_penalty: float = parameter(
        1.0,
        kind.span(token_kinds.SMALLEST_FACTOR, token_kinds.LARGEST_FACTOR),
        "above 1 makes the prompt's tokens likelier; 1: off",
    )
    frequency_penalty: float = _users_own(
        0.0,
        kind.span(-2, 2),
        "off a token's logit for each time it was generated",
        openai=("frequency_penalty",),
    )
    presence_penalty: float = _users_own(
        0.0, kind.span(-2, 2), "off a token's logit once it was generated", openai=("presence_penalty",)
    )
    no_repeat_ngram_size: int = parameter(0, kind.whole(0), "no n-gram of this length comes twice; 0: off")
    encoder_no_repeat_ngram_size: int = parameter(
        0, kind.whole(0), "no n-gram of this length of the prompt comes in the output; 0: off"
    )
    bad_words_ids: tuple[tuple[int, ...], ...] = parameter(
        (), token_kinds.token_sequences(), "token sequences that never come"
    )
    sequence_bias: tuple[tuple[tuple[int, ...], float], ...] = parameter(
        (),
        token_kinds.biased_sequences(),
        "added to the score of a token that ends a sequence",
    )
    logit_bias: tuple[tuple[int, float], ...] = _users_own(
        (), token_kinds.biased_tokens(100), "added to logits", openai=("logit_bias",)
    )
    suppress_tokens: tuple[int, ...] = parameter((), token_kinds.token_ids(), "tokens that never come")
    begin_suppress_tokens: tuple[int, ...] = parameter(
        (),
        token_kinds.token_ids(),
        "tokens that never come first",
        needs=(FREE_BEGINNING,),
    )
    forced_bos_token_id: int | None = parameter(None, token_kinds.token_id(), "the output's first token")
    forced_eos_token_id: tuple[int, ...] | None = parameter(
        None,
        token_kinds.token_ids(optional=True, least=1),
        "tokens allowed at the length limit",
    )
    exponential_decay_length_penalty: tuple[int, float] | None = parameter(
        None,
        token_kinds.start_and_factor(),
        "raises end tokens by factor**n, n tokens past start",
        needs=(ENDS,),
    )
    renormalize_logits: bool = parameter(
        False, kind.flag(), "make the scores log-probabilities again after all of these"
    )
    prefix_allowed_tokens_fn: AllowedTokens | None = _users_own(
        None,
        token_kinds.function("a row's key and its token ids"),
        "called with a row's key and its token ids; gives the ids allowed next",
        in_config=False,
    )
    regex: str | None = _users_own(
        None,
        token_kinds.regular_expression(),
        "regular expression that the output must match",
        topic="Constrained output",
    )
    json_schema: str | None = _users_own(
        None, token_kinds.json_schema(), "JSON schema that the output must follow"
    )
    reasoning_tags: tuple[str, str] | None = _users_own(
        None,
        token_kinds.tag_pair(),
        "where a prompt ends with the opening tag, the constraint holds behind the closing one",
    )
    max_length: int | None = parameter(
        None, kind.whole(1, optional=True), "longest prompt + output, in tokens", topic="Lengths and ends"
    )
    max_new_tokens: int | None = parameter(
        None,
        kind.whole(1, optional=True),
        "longest output, in tokens; null with max_length=null: 128",
        openai=("max_tokens", "max_completion_tokens"),
    )
    min_length: int = parameter(
        0, kind.whole(0), "shortest prompt + output before an end token may come", needs=(ENDS,)
    )
    min_new_tokens: int = parameter(
        0,
        kind.whole(0),
        "shortest output before an end token may come",
        needs=(ENDS,),
        openai=("min_tokens",),
    )
    stop: tuple[str, ...] = _users_own(
        (), token_kinds.stop_texts(), "texts that end the output; they are cut off it", openai=("stop",)
    )
    eos_token_id: tuple[int, ...] | None = _users_own(
        None, token_kinds.token_ids(optional=True), "end tokens; null: the model's own; []: none"
    )
    num_return_sequences: int = parameter(
        1,
        kind.whole(1, MAX_SAMPLES),
        "samples for each prompt, or hypotheses of a search",
        widens=True,
        openai=("n",),
        topic="What is returned",
    )
    logprobs: int | None = _users_own(
        None,
        kind.whole(0, MAX_LOGPROBS, optional=True),
        "log-probabilities of the chosen token and of the top k",
    )
    prompt_logprobs: int | None = _users_own(
        None, kind.whole(0, MAX_LOGPROBS, optional=True), "the same for the prompt's own tokens"
    )
    pooling: str | None = _users_own(
        None,
        kind.choice("last", "mean", "cls", "max", "weightedmean", optional=True),
        "an embedding of the prompt instead of text: hidden states of its last token, the mean of all, "
        "those of the first (cls), their maxima, or a mean that weighs later ones more",
        asks=Asks("embedding", samples=False, outputs="one"),
    )
    dimensions: int | None = _users_own(
        None,
        kind.whole(1, optional=True),
        "first numbers of an embedding that are kept, of length 1 again; null: all",
        needs=(EMBEDDING,),
    )
    prompt_logprobs_start: int = _users_own(
        0,
        kind.whole(0),
        "first token of the prompt that is scored, counted from 0; the prefix cache may hold those before it",
        needs=(SCORED_PROMPT,),
    )
    skip_special_tokens: bool = _users_own(
        True, kind.flag(), "leave special tokens out of the text", openai=("skip_special_tokens",)
    )

    def __post_init__(self) -> None:
        errors: dict[str, str] = {}
        for name, declared in PARAMETERS.items():
            argument = getattr(self, name)
            try:
                value = declared.kind.read(argument)
            except ValueError as error:
                errors[name] = f"{shown_parameter(name, argument)}: {error}"
                # The default stands in, so that errors among the others are named too.
                value = declared.default
            object.__setattr__(self, name, value)
        refused = [f"decoding.{name}=" for name in errors]
        news = [
            line for line in combination_errors(self, PARAMETERS) if not any(name in line for name in refused)
        ]
        if errors or news:
            raise ConfigError([*errors.values(), *news])

    @classmethod
    def from_model(cls, folder: str | Path, **overrides: Any) -> "DecodingParams":
        """Reads the recommendations of a folder's generation_config.json, which `overrides` override.

        Raises ConfigError if there is no such file or `overrides` are wrong.
        """
        return cls(**{**model_defaults(Path(folder), overrides, cls)[0], **overrides})

    @property
    def greedy(self) -> bool:
        return not self.do_sample or self.temperature == 0

    @property
    def num_draft_tokens(self) -> int:
        """Maximum number of tokens drafted for a step of speculative decoding; 0 is off."""
        return self.num_assistant_tokens or self.prompt_lookup_num_tokens

    def token_ids(self) -> Iterator[tuple[str, int]]:
        """Yields the name of a parameter and a token id in it, for all of them."""
        for name, declared in PARAMETERS.items():
            for token in declared.kind.token_ids(getattr(self, name)):
                yield name, token

    def max_total_tokens(self, prompt_length: int, seq_length: int) -> int:
        """Returns the number of tokens of prompt and output at which a request ends, at most `seq_length`.

        A result of `prompt_length` or less allows no new token.
        """
        limits = [seq_length]
        if self.max_length is not None:
            limits.append(self.max_length)
        if self.max_new_tokens is not None:
            limits.append(prompt_length + self.max_new_tokens)
        elif self.max_length is None:
            limits.append(prompt_length + DEFAULT_NEW_TOKENS)
        return min(limits)

    def min_total_tokens(self, prompt_length: int) -> int:
        """Returns the number of tokens of prompt and output before which no end token may be chosen."""
        return max(self.min_length, prompt_length + self.min_new_tokens)


PARAMETERS = parameters_of(DecodingParams)
"""Declaration of each parameter, by name, in the order of help."""
OTHER_NAMES = other_names(PARAMETERS)
"""OpenAI's names of parameters, with our own; they are keywords, too."""
FILTERS = tuple(name for name, declared in PARAMETERS.items() if declared.is_filter)
"""Names of the parameters that narrow the tokens that sampling chooses among."""
