"""DecodingParams: how one request's tokens are chosen and when it ends."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from mindbatch.decoding.combinations import combination_faults
from mindbatch.decoding.normalisation import normalised
from mindbatch.decoding.rules import field_faults
from mindbatch.errors import ConfigError

AllowedTokens = Callable[[str, Sequence[int]], Iterable[int]]
DEFAULT_NEW_TOKENS = 128
"""New tokens of a request that gives neither max_length nor max_new_tokens."""


@dataclass(frozen=True, kw_only=True)
class DecodingParams:
    """Decoding parameters under their Hugging Face names; `rules.py` has the allowed values and
    `combinations.py` what cannot go together.

    Raises ConfigError naming every fault at once.
    """

    do_sample: bool = False
    """False takes the most likely token at every step; False or temperature=0 is greedy."""
    temperature: float = 1.0
    """Divides the logits before sampling; 0 is greedy whatever do_sample says."""
    top_k: int = 0
    """Sample among the k most likely tokens (all that tie with the k-th); 0 is off."""
    top_p: float = 1.0
    """Sample within the smallest set of tokens whose probability reaches top_p; 1 is off."""
    min_p: float = 0.0
    """Drop tokens less likely than min_p times the most likely one; 0 is off."""
    top_h: float = 1.0
    """Keep the likeliest tokens while their entropy is at most this share of the distribution's; 1 is off."""
    typical_p: float = 1.0
    """Keep the tokens of most typical information that together reach this probability; 1 is off."""
    epsilon_cutoff: float = 0.0
    """Drop tokens less likely than this; 0 is off."""
    eta_cutoff: float = 0.0
    """Drop tokens less likely than a bound that falls with the distribution's entropy; 0 is off."""
    seed: int = 0
    """Seed of the counter-based generator, 0 to 2**64 - 1."""
    num_beams: int = 1
    """Hypotheses that beam search keeps at every step; 1 is no beam search."""
    num_beam_groups: int = 1
    """Groups of beams that are pushed apart by diversity_penalty; must divide num_beams."""
    diversity_penalty: float = 0.0
    """Taken off a token's score for each earlier group that chose it at the same step."""
    length_penalty: float = 1.0
    """Exponent of the length that a hypothesis's log-probability is divided by: above 0 favours long ones."""
    early_stopping: bool | str = False
    """When beam search ends: true at num_beams finished hypotheses, false when better ones are unlikely,
    "never" when they are impossible."""
    penalty_alpha: float = 0.0
    """Contrastive search among the top_k tokens: weight of the degeneration penalty, 0 to 1; 0 is off."""
    best_of: int | None = None
    """Sample-and-rank: candidates sampled, of which the best num_return_sequences are returned."""
    num_assistant_tokens: int = 0
    """Speculative decoding: tokens that the assistant model drafts for each step; 0 is off."""
    prompt_lookup_num_tokens: int = 0
    """Speculative decoding without an assistant: tokens drafted from an earlier occurrence; 0 is off."""
    max_matching_ngram_size: int = 2
    """Longest n-gram at the end of the text that prompt lookup searches for earlier in it."""
    repetition_penalty: float = 1.0
    """Above 1 makes tokens of the prompt and the output so far less likely; 1 is off."""
    encoder_repetition_penalty: float = 1.0
    """Above 1 makes tokens of the prompt more likely, below 1 less; 1 is off."""
    frequency_penalty: float = 0.0
    """Taken off a token's logit for each time that it is in the output; 0 is off."""
    presence_penalty: float = 0.0
    """Taken off a token's logit once if it is in the output; 0 is off."""
    no_repeat_ngram_size: int = 0
    """No n-gram of this many tokens comes twice in prompt and output together; 0 is off."""
    encoder_no_repeat_ngram_size: int = 0
    """No n-gram of this many tokens of the prompt comes in the output; 0 is off."""
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    """Token sequences that the output must not hold."""
    sequence_bias: tuple[tuple[tuple[int, ...], float], ...] = ()
    """Pairs of a token sequence and what is added to the score of its last token after the others."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Pairs of a token and what is added to its logit, as OpenAI has it; a mapping is normalised."""
    suppress_tokens: tuple[int, ...] = ()
    """Tokens that are never chosen."""
    begin_suppress_tokens: tuple[int, ...] = ()
    """Tokens that are not chosen first."""
    forced_bos_token_id: int | None = None
    """The output's first token, whatever the model says."""
    forced_eos_token_id: tuple[int, ...] | None = None
    """The only tokens allowed at the last position that the length limits leave."""
    exponential_decay_length_penalty: tuple[int, float] | None = None
    """(start, factor): past `start` output tokens the end tokens gain score, by factor**(tokens past it)."""
    renormalize_logits: bool = False
    """Make the processed scores log-probabilities again before choosing."""
    prefix_allowed_tokens_fn: AllowedTokens | None = None
    """Given a row's key and its tokens so far, the tokens allowed next. Not in configurations."""
    regex: str | None = None
    """A regular expression that the whole output text must match."""
    json_schema: str | None = None
    """A JSON schema that the output must follow; a mapping is normalised to its text."""
    max_length: int | None = None
    """Most tokens of prompt and output together; if max_new_tokens is given too, the tighter one ends it."""
    max_new_tokens: int | None = None
    """Most tokens of output; 128 when max_length is not given either."""
    min_length: int = 0
    """No end-of-sequence token before prompt and output together have this many tokens."""
    min_new_tokens: int = 0
    """No end-of-sequence token before the output has this many tokens."""
    stop: tuple[str, ...] = ()
    """Texts that end the output and are cut off it; a string or a list is normalised to a tuple."""
    eos_token_id: tuple[int, ...] | None = None
    """Tokens that end the output; None is the model's own, () is none; an int or a list is normalised."""
    num_return_sequences: int = 1
    """Samples drawn from one prompt."""
    logprobs: int | None = None
    """Report the log-probabilities of this many most likely tokens at each output position; None is off."""
    prompt_logprobs: int | None = None
    """The same for the positions of the prompt."""
    skip_special_tokens: bool = True
    """Leave control tokens out of the output's text."""

    def __post_init__(self) -> None:
        values = {field.name: normalised(field.name, getattr(self, field.name)) for field in fields(self)}
        faults = field_faults(values)
        for field in fields(self):
            # Where a value is refused its default stands in, so that faults among the others are named too.
            value = field.default if field.name in faults else values[field.name]
            object.__setattr__(self, field.name, value)
        refused = [f"decoding.{name}=" for name in faults]
        news = [line for line in combination_faults(self) if not any(name in line for name in refused)]
        if faults or news:
            raise ConfigError([*faults.values(), *news])

    @classmethod
    def from_model(cls, folder: str | Path, **given: Any) -> "DecodingParams":
        """What the model folder's generation_config.json recommends, with the given parameters before it.

        Raises ConfigError where there is no such file or the given parameters are at fault.
        """
        from mindbatch.decoding.model_defaults import params_of  # which needs this class

        return params_of(Path(folder), given)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken at every step."""
        return not self.do_sample or self.temperature == 0

    @property
    def num_draft_tokens(self) -> int:
        """The most tokens that are drafted for a step of speculative decoding; 0 is none."""
        return self.num_assistant_tokens or self.prompt_lookup_num_tokens

    def max_total_tokens(self, prompt_length: int, seq_length: int) -> int:
        """Tokens of prompt and output together at which the request ends; at most the model's `seq_length`.

        A result of `prompt_length` or less means that there is no room for a new token.
        """
        limits = [seq_length]
        if self.max_length is not None:
            limits.append(self.max_length)
        if self.max_new_tokens is not None:
            limits.append(prompt_length + self.max_new_tokens)
        if self.max_length is None and self.max_new_tokens is None:
            limits.append(prompt_length + DEFAULT_NEW_TOKENS)
        return min(limits)

    def min_total_tokens(self, prompt_length: int) -> int:
        """Tokens of prompt and output together before which no end-of-sequence token may be chosen."""
        return max(self.min_length, prompt_length + self.min_new_tokens)
