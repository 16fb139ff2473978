"""Sequences and the groups that they form: the state of a request while it runs."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, field
from typing import Protocol

from mindbatch.decoding import GroupView, Row, StopMatcher, Strategy
from mindbatch.engine.request import CompletionOutput, FinishReason, Request


class Detokenizer(Protocol):
    """Turns one sequence's output tokens into text, never tearing a character."""

    def push(self, token_id: int) -> str: ...
    def flush(self) -> str: ...
    def fork(self) -> Detokenizer: ...


@dataclass(slots=True)
class SequenceText:
    """The text of one sequence, cut at its stop strings."""

    detokenizer: Detokenizer
    stop: StopMatcher
    text: str = ""

    def push(self, token_id: int) -> str:
        """Adds a token; returns the text that has become certain."""
        added = self.stop.push(self.detokenizer.push(token_id))
        self.text += added
        return added

    def flush(self) -> str:
        """Ends the text; returns what was held back."""
        added = self.stop.push(self.detokenizer.flush()) + self.stop.flush()
        self.text += added
        return added

    def fork(self) -> SequenceText:
        """An independent copy for a sequence that continues in two ways."""
        return SequenceText(self.detokenizer.fork(), copy.copy(self.stop), self.text)


@dataclass(slots=True, eq=False)
class Sequence:
    """One prompt with one continuation and the cache blocks that hold it.

    block_table: cache blocks in order of position.
    num_computed_tokens: leading tokens whose keys and values are in the cache.
    block_digests: names of leading full blocks, as far as the prefix cache has asked for them.
    """

    row: Row
    text: SequenceText | None
    block_table: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    block_digests: list[bytes] = field(default_factory=list)
    cumulative_logprob: float = 0.0
    logprobs: list[dict[int, float]] | None = None
    finish_reason: FinishReason | None = None

    def __len__(self) -> int:
        return len(self.row.prompt_token_ids) + len(self.row.output_token_ids)

    @property
    def num_pending_tokens(self) -> int:
        """Tokens that must still pass through the model; the last one's logits choose the next."""
        return len(self) - self.num_computed_tokens

    def tokens(self, start: int, stop: int) -> list[int]:
        """Tokens of prompt and output at positions start .. stop - 1."""
        prompt, output = self.row.prompt_token_ids, self.row.output_token_ids
        size = len(prompt)
        if start >= size:
            return output[start - size : stop - size]
        return [*prompt[start:stop], *output[: max(0, stop - size)]]

    def append(self, token_id: int, logprob: float, top_logprobs: dict[int, float] | None) -> str:
        """Adds a token; returns the text that has become certain."""
        self.row.output_token_ids.append(token_id)
        self.cumulative_logprob += logprob
        if top_logprobs is not None:
            self.logprobs = self.logprobs or []
            self.logprobs.append(top_logprobs)
        return "" if self.text is None else self.text.push(token_id)

    def fork(self) -> Sequence:
        """A copy without cache blocks; the caller shares those through the block manager."""
        row = self.row
        return Sequence(
            row=Row(
                row.params,
                row.prompt_token_ids,
                list(row.output_token_ids),
                row.eos_token_ids,
                row.row_hash,
                row.sample_index,
            ),
            text=None if self.text is None else self.text.fork(),
            block_digests=list(self.block_digests),
            cumulative_logprob=self.cumulative_logprob,
            logprobs=None if self.logprobs is None else list(self.logprobs),
        )

    def output(self) -> CompletionOutput:
        """The finished sequence as the user gets it."""
        assert self.finish_reason is not None
        return CompletionOutput(
            index=self.row.sample_index,
            text="" if self.text is None else self.text.text,
            token_ids=list(self.row.output_token_ids),
            finish_reason=self.finish_reason,
            cumulative_logprob=self.cumulative_logprob,
            logprobs=self.logprobs,
        )


@dataclass(slots=True, eq=False)
class SequenceGroup:
    """A request, its strategy and its sequences.

    sequences: the live ones, in the order in which the strategy sees them.
    finished: outputs of those that have ended.
    max_tokens: tokens of prompt and output at which a sequence ends.
    num_cached_tokens: prompt tokens that were found in the cache; None until the request is first admitted.
    """

    request: Request
    strategy: Strategy
    sequences: list[Sequence]
    max_tokens: int
    finished: list[CompletionOutput] = field(default_factory=list)
    prompt_logprobs: list[dict[int, float] | None] | None = None
    num_cached_tokens: int | None = None
    started: float = field(default_factory=time.perf_counter)

    @property
    def num_seats(self) -> int:
        """Sequences that the group will have: its samples are forked once the prompt is in the cache."""
        return max(len(self.sequences), 0 if self.has_output else self.request.params.num_return_sequences)

    @property
    def has_output(self) -> bool:
        """Whether the first tokens have been chosen."""
        return bool(self.finished) or any(sequence.row.output_token_ids for sequence in self.sequences)

    @property
    def is_finished(self) -> bool:
        return not self.sequences

    @property
    def is_decoding(self) -> bool:
        """Whether every sequence has just its last token to compute."""
        return all(sequence.num_pending_tokens == 1 for sequence in self.sequences)

    def view(self) -> GroupView:
        """What the strategy sees."""
        return GroupView([sequence.row for sequence in self.sequences])
