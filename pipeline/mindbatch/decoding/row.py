"""Row: what decoding needs to know of one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mindbatch.decoding.choice import Choice
from mindbatch.decoding.constraint import Constraint
from mindbatch.decoding.draft import Draft
from mindbatch.decoding.params import DecodingParams

if TYPE_CHECKING:
    from mindbatch.decoding.processors.step import Processor


@dataclass(slots=True)
class Row:
    """One sequence of a step's batch; its logits are those that follow its last token.

    `prompt_token_ids` must not change during the row's life. `row_hash` (see `philox.row_hash`) of `key` and
    `sample_index` place the row in the random stream. `cumulative_logprob` (nats) and `logprobs` are those of
    the output under the model's raw logits; `logprobs` is None unless asked for. `constraint` is what a
    regular expression or schema still allows, and `draft` holds tokens that are to be verified. The row ends
    at `max_tokens` of prompt and output; None leaves the limit to `params`. `processors` are those that
    `processors.adjust` made for the row.
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
    processors: tuple[Processor, ...] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def step(self) -> int:
        """Tokens of output so far, which numbers the step about to be made."""
        return len(self.output_token_ids)

    @property
    def ends_too_early(self) -> bool:
        """Whether the row is still below min_length or min_new_tokens, so that it may not end."""
        prompt_length = len(self.prompt_token_ids)
        return prompt_length + self.step < self.params.min_total_tokens(prompt_length)

    def append(self, choice: Choice) -> None:
        """The row goes on with a token."""
        self.output_token_ids.append(choice.token_id)
        self.cumulative_logprob += choice.logprob
        if choice.top_logprobs is not None:
            self.logprobs = self.logprobs or []
            self.logprobs.append(choice.top_logprobs)
        if self.constraint is not None:
            self.constraint.advance(choice.token_id)

    def fork(self) -> Row:
        """An independent copy, without a draft."""
        twin = Row(
            self.params,
            self.prompt_token_ids,
            list(self.output_token_ids),
            self.eos_token_ids,
            self.row_hash,
            self.sample_index,
            self.key,
            None if self.constraint is None else self.constraint.fork(),
            None,
            self.cumulative_logprob,
            None if self.logprobs is None else list(self.logprobs),
            self.max_tokens,
        )
        twin.processors = self.processors
        return twin
