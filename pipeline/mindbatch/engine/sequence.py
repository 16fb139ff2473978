"""Sequences and the groups that they form: the state of a request while it runs."""

from __future__ import annotations

import time
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mindbatch.architecture.architecture import BlockPositions2D
from mindbatch.decoding.row import FinishReason, Row, row_error
from mindbatch.decoding.strategy import DecodingStrategy
from mindbatch.engine.adapter_slots import LiveAdapter
from mindbatch.engine.output_text import SequenceText
from mindbatch.engine.request import CompletionOutput, Request
from mindbatch.io.errors import PromptError
from mindbatch.kernels.step import IntArray


@dataclass(frozen=True, slots=True)
class PromptContext:
    """Context of one prompt of a model with `BlockPositions2D`.

    length: number of tokens of the context, with which the prompt begins.
    mask: the first position of all tokens after the context.
    """

    length: int
    mask: int

    def positions(self, indices: IntArray) -> IntArray:
        """Returns the two positions [T, 2] of the tokens with these indices in the sequence."""
        behind = indices >= self.length
        pairs = (np.where(behind, self.mask, indices), np.where(behind, indices - self.length + 1, 0))
        positions: IntArray = np.stack(pairs, axis=1).astype(np.int32)
        return positions

    def lengths(self, indices: IntArray) -> IntArray:
        """Returns the number of tokens that each of these attends to; a token of the context, to all of
        it."""
        seen: IntArray = np.maximum(indices + 1, self.length, dtype=np.int32)
        return seen


def context_of(key: str, prompt: Items[int], model: BlockPositions2D) -> PromptContext:
    """Returns the context of a prompt; the mask is the first of the first kind that the prompt has.

    Raises:
        PromptError: the prompt lacks the token that ends the context, or a mask.
    """
    masks = [prompt.index(mask_id) for mask_id in model.mask_ids if mask_id in prompt]
    if model.start_id not in prompt or not masks:
        raise PromptError(
            f"{key}: the prompt must have token {model.start_id}, behind which the output begins, and a mask "
            f"({' or '.join(map(str, model.mask_ids))}), from which positions are counted; a tokenizer adds "
            "both, and to token ids they must be added"
        )
    return PromptContext(prompt.index(model.start_id), masks[0])


@dataclass(slots=True, eq=False)
class Sequence:
    """One prompt with one continuation and the cache blocks that hold it.

    text: None without a tokenizer, and in searches without stop strings.
    block_table: cache blocks in order of position. state_table: the slot of the recurrent state, if any.
    num_computed_tokens: number of leading tokens whose keys and values are in the cache and which the
        recurrent state includes; drafted tokens do not count.
    num_replayed_tokens: number of accepted tokens after these that the recurrent state does not include; the
        next step computes them again, with the last token.
    num_known_tokens: number of leading tokens that other sequences share; a step of the prompt ends with
        them, so that the state after them is registered.
    block_digests: digests of the leading full blocks, as far as they have been computed.
    num_drafted_tokens, num_accepted_tokens: tokens of all verified drafts, and how many were accepted.
    context: the context of the prompt, where the model's tokens have two positions.
    """

    row: Row
    text: SequenceText | None
    block_table: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    state_table: list[int] = field(default_factory=list)
    num_replayed_tokens: int = 0
    num_known_tokens: int = 0
    block_digests: list[bytes] = field(default_factory=list)
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0
    finish_reason: FinishReason | None = None
    context: PromptContext | None = None
    _num_input_tokens: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._num_input_tokens = len(self.row.encoder_token_ids) + len(self.row.prompt_token_ids)

    def __len__(self) -> int:
        return self._num_input_tokens + len(self.row.output_token_ids)

    @property
    def num_encoder_tokens(self) -> int:
        """Number of tokens of the encoder's input, with which the sequence begins; one step has them all."""
        return len(self.row.encoder_token_ids)

    @property
    def num_unsplittable_prefill_tokens(self) -> int:
        """Number of tokens that the next step must have: the rest of the bidirectional ones."""
        return max(0, self.num_bidirectional_tokens - self.num_computed_tokens)

    @property
    def num_bidirectional_tokens(self) -> int:
        """Number of leading tokens that attend to each other: an encoder's input, or a prompt's context."""
        return self.num_encoder_tokens if self.context is None else self.context.length

    @property
    def num_draft_tokens(self) -> int:
        """Number of draft tokens not yet verified."""
        return 0 if self.row.draft is None else len(self.row.draft.token_ids)

    @property
    def num_earlier_tokens(self) -> int:
        """Number of tokens to compute before the last one, whose logits choose the next."""
        return len(self) - 1 - self.num_computed_tokens

    def tokens(self, start: int, stop: int) -> list[int]:
        """Returns the tokens of encoder input, prompt, output and draft at positions start .. stop - 1."""
        row = self.row
        prompt, output = row.prompt_token_ids, row.output_token_ids
        if row.draft is not None and stop > len(self):
            output = [*output, *row.draft.token_ids]
        prompt = [*row.encoder_token_ids, *prompt] if row.encoder_token_ids else prompt
        size = len(prompt)
        if start >= size:
            return output[start - size : stop - size]
        return [*prompt[start:stop], *output[: max(0, stop - size)]]

    def fork(self) -> Sequence:
        """Returns a copy without cache blocks; the caller shares those through the block manager."""
        return Sequence(
            row=self.row.fork(),
            text=None if self.text is None else self.text.fork(),
            block_digests=list(self.block_digests),
            num_drafted_tokens=self.num_drafted_tokens,
            num_accepted_tokens=self.num_accepted_tokens,
            context=self.context,
        )

    def reason_to_finish(self, max_tokens: int) -> FinishReason | None:
        """Returns the reason why the sequence ends with its last token, or None."""
        stopped = self.text is not None and self.text.stop.stopped
        return _reason(self.row, self.row.output_token_ids[-1], stopped, len(self) >= max_tokens)

    def reason_to_finish_with(self, token_id: int, max_tokens: int) -> FinishReason | None:
        """Returns the reason why the sequence would end with one more token, or None; does not change it."""
        text, row = self.text, self.row
        if text is not None:
            text = text.fork()
            text.push(token_id)
        if row.constraint is not None and token_id not in row.eos_token_ids:
            row = row.fork()
            assert row.constraint is not None
            row.constraint.advance(token_id)
        stopped = text is not None and text.stop.stopped
        reason = _reason(row, token_id, stopped, len(self) + 1 >= max_tokens)
        if reason == "length" and text is not None:
            text.flush()  # what was held back may hold a stop string
            return "stop" if text.stop.stopped else reason
        return reason

    def output(self) -> CompletionOutput:
        assert self.finish_reason is not None
        return CompletionOutput(
            index=self.row.sample_index,
            text="" if self.text is None else self.text.text,
            token_ids=list(self.row.output_token_ids),
            finish_reason=self.finish_reason,
            cumulative_logprob=self.row.cumulative_logprob,
            logprobs=self.row.logprobs,
            num_drafted_tokens=self.num_drafted_tokens,
            num_accepted_tokens=self.num_accepted_tokens,
        )


def _reason(row: Row, last: int, stopped: bool, is_full: bool) -> FinishReason | None:
    complete = row.constraint is not None and row.constraint.is_complete
    if stopped or complete or last in row.eos_token_ids:
        return "stop"
    return "length" if is_full else None


@dataclass(slots=True, eq=False)
class SequenceGroup:
    """A request, its strategy and its sequences.

    sequences: the running sequences, in the strategy's order.
    max_tokens: number of tokens of prompt and output at which a sequence ends.
    state: the strategy's state of the request.
    agreed: the text on which all hypotheses of a search agree; None without a tokenizer.
    num_agreed_tokens: number of output tokens on which they agree.
    finished: outputs of the sequences that have ended.
    prompt_hidden: last hidden states of the prompt's tokens, chunk by chunk, if the strategy needs them.
    error: the reason why the request cannot continue.
    num_cached_tokens: number of prompt tokens found in the cache; None until the request is first admitted.
    adapter: the adapter that computes the request; None is the base. adapter_slot: its slot while it runs.
    """

    request: Request
    strategy: DecodingStrategy
    sequences: list[Sequence]
    max_tokens: int
    state: Any = None
    agreed: SequenceText | None = None
    num_agreed_tokens: int = 0
    finished: list[CompletionOutput] = field(default_factory=list)
    prompt_logprobs: list[dict[int, float] | None] | None = None
    prompt_hidden: list[npt.NDArray[np.float32]] = field(default_factory=list)
    error: PromptError | None = None
    num_cached_tokens: int | None = None
    adapter: LiveAdapter | None = None
    adapter_slot: int = 0
    started: float = field(default_factory=time.perf_counter)

    @property
    def adapter_name(self) -> str | None:
        """The name of the adapter; None for the base."""
        return None if self.adapter is None else self.adapter.name

    @property
    def records_prompt(self) -> bool:
        """True if log-probabilities or hidden states of the prompt's tokens are kept."""
        return self.request.params.prompt_logprobs is not None or self.strategy.needs_hidden

    @property
    def max_num_sequences(self) -> int:
        """Number of sequences that the group has, or will have once the prompt is in the cache."""
        if self.strategy.searches or not self.has_output:
            return self.strategy.width(self.request.params)
        return len(self.sequences)

    @property
    def has_output(self) -> bool:
        return bool(self.finished) or any(sequence.row.output_token_ids for sequence in self.sequences)

    @property
    def is_finished(self) -> bool:
        return self.error is not None or not self.sequences

    def fail(self, error: Exception) -> None:
        """Ends the request with an error; the scheduler releases its sequences."""
        self.error = row_error(error, self.request.key)

    @property
    def is_decoding(self) -> bool:
        """True if every sequence has only its last tokens, and a draft, to compute."""
        for sequence in self.sequences:  # noqa: SIM110 - called for every request in every step; all() takes twice as long
            if sequence.num_earlier_tokens != sequence.num_replayed_tokens:
                return False
        return True

    @property
    def first_unscored(self) -> int:
        """Index of the first prompt token without a log-probability, where they are requested."""
        return self.request.params.prompt_logprobs_start + len(self.prompt_logprobs or ())

    @property
    def max_cached_tokens(self) -> int | None:
        """Maximum number of leading tokens that may come from the cache; None is all of them.

        Hidden states need every token of a prompt computed, a log-probability the token before it.
        """
        if self.strategy.needs_hidden and not self.has_output:
            return 0
        first, length = self.first_unscored, len(self.request.prompt_token_ids)
        if self.request.params.prompt_logprobs is None or first >= length:
            return None
        return max(0, first - 1)
