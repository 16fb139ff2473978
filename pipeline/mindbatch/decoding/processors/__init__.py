"""Changes to a row's scores that every strategy makes before it chooses: biases, penalties and bans.

The rules and their order are those of transformers 4.57 (generation/utils.py, `_get_logits_processor`, and
generation/logits_process.py). OpenAI's parameters, which transformers does not have, come first, for they are
defined on the model's own logits. The row's constraint comes last.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.params import PARAMETERS, DecodingParams
from mindbatch.decoding.processors import bans, biases
from mindbatch.decoding.row import DecodingStep, NoTokenLeftError, Processor, Row

__all__ = ["NoTokenLeftError", "adjust", "renormalised"]

_ORDER: tuple[tuple[Callable[[Row], Processor], tuple[str, ...]], ...] = (
    (biases.logit_bias, ("logit_bias",)),
    (biases.frequency_and_presence, ("frequency_penalty", "presence_penalty")),
    (biases.sequence_bias, ("sequence_bias",)),
    (biases.encoder_repetition, ("encoder_repetition_penalty",)),
    (biases.repetition, ("repetition_penalty",)),
    (bans.repeated_ngrams, ("no_repeat_ngram_size",)),
    (bans.repeated_prompt_ngrams, ("encoder_no_repeat_ngram_size",)),
    (bans.bad_words, ("bad_words_ids",)),
    (biases.early_end, ("min_length", "min_new_tokens")),
    (bans.allowed_by_callable, ("prefix_allowed_tokens_fn",)),
    (biases.forced_beginning, ("forced_bos_token_id",)),
    (biases.forced_end, ("forced_eos_token_id",)),
    (biases.growing_end, ("exponential_decay_length_penalty",)),
    (bans.suppressed, ("suppress_tokens",)),
    (bans.suppressed_at_the_beginning, ("begin_suppress_tokens",)),
)
"""Functions that make processors, with the parameters that ask for each by not having their default."""


def adjust(scores: NDArray[np.float32], row: Row) -> NDArray[np.float32]:
    """The row's scores [V] after its processors; `scores` itself, not a copy, when none changes any.

    `scores` are logits, or the log-probabilities that beam searches work on; they are not changed. Where the
    row does not sample, `renormalize_logits` is done too.

    Raises:
        NoTokenLeftError: every token is forbidden; names the row and what is in the way.
        PromptError: the user's callable failed.
    """
    if row.processors is None:
        row.processors = _processors_of(row)
    if row.processors or row.constraint is not None:
        step = DecodingStep(scores, row)
        for process in row.processors:
            process(step)
        bans.obey_constraint(step)
        scores = step.result()
    return renormalised(scores, row.params) if row.params.greedy else scores


def _processors_of(row: Row) -> tuple[Processor, ...]:
    """Makes the processors that the row's parameters ask for, in order."""
    return tuple(
        make(row)
        for make, names in _ORDER
        if any(getattr(row.params, name) != PARAMETERS[name].default for name in names)
    )


def renormalised(scores: NDArray[np.float32], params: DecodingParams) -> NDArray[np.float32]:
    """Log-probabilities (nats) of `scores` [n] if `renormalize_logits` asks for them, else `scores` itself.

    One score must be finite; a token at minus infinity stays there. Without sampling, `adjust` does this.
    With sampling it comes after the filters, so whoever applies those does it.
    """
    if not params.renormalize_logits:
        return scores
    shifted: NDArray[np.float32] = scores - scores.max()
    shifted -= np.log(np.exp(shifted).sum())
    return shifted
