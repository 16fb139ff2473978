"""Tokens that alone are allowed: by the user's callable, or by the row's constraint."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.row import DecodingStep, NoTokenLeftError, Processor, Row
from mindbatch.io.errors import PromptError


def allowed_by_callable(row: Row) -> Processor:
    """prefix_allowed_tokens_fn, asked with the row's key and the tokens of prompt and output."""
    ask = row.params.prefix_allowed_tokens_fn
    assert ask is not None

    def process(step: DecodingStep) -> None:
        key, tokens = step.row.key, [*step.row.prompt_token_ids, *step.row.output_token_ids]
        try:
            allowed = _mask(ask(key, tokens), step.scores.size)
        except Exception as error:  # the user's code may raise anything
            raise PromptError(f"{key}: decoding.prefix_allowed_tokens_fn: {error!r}") from error
        step.allow_only(allowed, "prefix_allowed_tokens_fn")

    return process


def obey_constraint(step: DecodingStep) -> None:
    """The row's regular expression or schema has the last word: nothing forces a token against it."""
    constraint = step.row.constraint
    if constraint is not None and constraint.fault is not None:
        raise NoTokenLeftError(f"{step.row.key}: {constraint.fault}")
    allowed = step.allowed
    if allowed is not None:
        step.allow_only(allowed, "json_schema" if step.row.params.json_schema is not None else "regex")


def _mask(allowed: Iterable[int], vocabulary_size: int) -> NDArray[np.bool_]:
    """Mask [V] of the given token ids."""
    mask = np.zeros(vocabulary_size, dtype=np.bool_)
    token_ids = allowed if isinstance(allowed, np.ndarray) else np.array(list(allowed))
    if token_ids.size:
        if token_ids.ndim != 1 or token_ids.dtype.kind not in "iu":
            raise TypeError(f"must give whole numbers, not {token_ids.dtype} of shape {token_ids.shape}")
        if token_ids.min() < 0 or token_ids.max() >= vocabulary_size:
            raise ValueError(f"must give token ids of the vocabulary, 0 to {vocabulary_size - 1}")
        mask[token_ids] = True
    return mask
