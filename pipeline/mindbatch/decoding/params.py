"""DecodingParams: how one request's tokens are chosen and when it ends."""

from dataclasses import dataclass, fields

from mindbatch.decoding.rules import combination_faults, field_faults, normalised
from mindbatch.errors import ConfigError

DEFAULT_NEW_TOKENS = 128
"""New tokens of a request that gives neither max_length nor max_new_tokens."""


@dataclass(frozen=True, kw_only=True)
class DecodingParams:
    """Decoding parameters under their Hugging Face names; see `rules.py` for the allowed values.

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
    repetition_penalty: float = 1.0
    """Above 1 makes tokens of the prompt and the output so far less likely; 1 is off."""
    max_length: int | None = None
    """Most tokens of prompt and output together; if max_new_tokens is given too, the tighter one ends it."""
    max_new_tokens: int | None = None
    """Most tokens of output; 128 when max_length is not given either."""
    min_length: int = 0
    """No end-of-sequence token before prompt and output together have this many tokens."""
    min_new_tokens: int = 0
    """No end-of-sequence token before the output has this many tokens."""
    num_return_sequences: int = 1
    """Samples drawn from one prompt."""
    seed: int = 0
    """Seed of the counter-based generator, 0 to 2**64 - 1."""
    stop: tuple[str, ...] = ()
    """Texts that end the output and are cut off it; a string or a list is normalised to a tuple."""
    eos_token_id: tuple[int, ...] | None = None
    """Tokens that end the output; None is the model's own, () is none; an int or a list is normalised."""
    logprobs: int | None = None
    """Report the log-probabilities of this many most likely tokens at each output position; None is off."""
    prompt_logprobs: int | None = None
    """The same for the positions of the prompt."""
    skip_special_tokens: bool = True
    """Leave control tokens out of the output's text."""

    def __post_init__(self) -> None:
        values = {field.name: normalised(field.name, getattr(self, field.name)) for field in fields(self)}
        faults = field_faults(values)
        # Where a value is refused its default stands in, so that faults among the others are named too.
        sound = values | {field.name: field.default for field in fields(self) if field.name in faults}
        every_fault = [*faults.values(), *combination_faults(sound)]
        if every_fault:
            raise ConfigError(every_fault)
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken at every step."""
        return not self.do_sample or self.temperature == 0

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
