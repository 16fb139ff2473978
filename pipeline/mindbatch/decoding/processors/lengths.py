"""Output lengths: minimum lengths, forced tokens and the decaying length penalty."""

import sys

import numpy as np

from mindbatch.decoding.row import DecodingStep, Processor, Row, token_array

_LARGEST = np.finfo(np.float32).max


def early_end(row: Row) -> Processor:
    """min_length and min_new_tokens: no end token before both.

    Where the row's constraint allows nothing but an end token, the output ends all the same: there is none
    that fulfils the constraint and is longer.
    """
    ends = np.unique(token_array(row.eos_token_ids))
    by = "min_new_tokens" if row.params.min_new_tokens else "min_length"

    def process(step: DecodingStep) -> None:
        if step.row.ends_too_early and not _must_end(step):
            step.forbid(ends, by)

    def _must_end(step: DecodingStep) -> bool:
        allowed = step.allowed
        if allowed is None:
            return False
        return np.count_nonzero(allowed) == np.count_nonzero(allowed[ends[ends < allowed.size]])

    return process


def forced_beginning(row: Row) -> Processor:
    """forced_bos_token_id is the output's first token.

    transformers forces it after a prompt of one token, which is what an encoder-decoder model begins with;
    for other models that would leave it without effect on nearly every prompt.
    """
    token_id = row.params.forced_bos_token_id
    assert token_id is not None

    def process(step: DecodingStep) -> None:
        if step.row.step == 0:
            step.force((token_id,), "forced_bos_token_id")

    return process


def forced_end(row: Row) -> Processor:
    """forced_eos_token_id: the only tokens at the last position before the row's length limit.

    Where the row's constraint allows none of them, it is the limit that cuts the output off.
    """
    token_ids = row.params.forced_eos_token_id
    assert token_ids is not None

    def process(step: DecodingStep) -> None:
        if step.length != _limit(step.row) - 1:
            return
        if step.allowed is None or step.allowed[list(token_ids)].any():
            step.force(token_ids, "forced_eos_token_id")

    return process


def _limit(row: Row) -> int:
    """Tokens of prompt and output at which the row ends."""
    if row.max_tokens is not None:
        return row.max_tokens
    return row.params.max_total_tokens(len(row.prompt_token_ids), sys.maxsize)


def growing_end(row: Row) -> Processor:
    """exponential_decay_length_penalty: past `start` tokens of output, the end tokens gain score.

    A score s becomes s + |s| * (factor**n - 1), n tokens past the start. A forbidden end token stays
    forbidden, and what is too large for float32 becomes its largest number; in transformers the one gives NaN
    and the other infinity.
    """
    decay = row.params.exponential_decay_length_penalty
    assert decay is not None
    start, factor = decay
    ends = np.unique(token_array(row.eos_token_ids))

    def process(step: DecodingStep) -> None:
        past = step.row.step - start
        possible = ends[ends < step.scores.size]
        possible = possible[step.scores[possible] > -np.inf]
        if past <= 0 or not possible.size:
            return
        own = step.scores[possible]
        with np.errstate(over="ignore"):
            growth = np.minimum(np.float64(factor) ** past - 1, _LARGEST).astype(np.float32)
            raised = own + np.abs(own) * growth
        step.writable()[possible] = np.minimum(raised, _LARGEST)

    return process
