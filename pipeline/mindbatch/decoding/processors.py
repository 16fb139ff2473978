"""Changes to a row's scores that every strategy makes before it chooses: biases, penalties and bans.

The rules and their order are those of transformers 4.57 (generation/utils.py, `_get_logits_processor`, and
generation/logits_process.py). OpenAI's parameters, which transformers does not have, come first, for they are
defined on the model's own logits. The row's constraint comes last.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding import bans
from mindbatch.decoding.params import PARAMETERS, DecodingParams
from mindbatch.decoding.row import DecodingStep, Processor, Row, token_array
from mindbatch.decoding.softmax import exponential, logarithm

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
        if step.length != step.row.limit - 1:
            return
        if step.allowed is None or step.allowed[list(token_ids)].any():
            step.force(token_ids, "forced_eos_token_id")

    return process


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


def logit_bias(row: Row) -> Processor:
    """OpenAI's logit_bias, added to the scores of single tokens."""
    pairs = dict(row.params.logit_bias)
    token_ids, biases = token_array(list(pairs)), np.array(list(pairs.values()), dtype=np.float32)

    def process(step: DecodingStep) -> None:
        step.writable()[token_ids] += biases

    return process


def sequence_bias(row: Row) -> Processor:
    """sequence_bias: a sequence's bias goes to its last token where the others are the row's latest."""
    pairs = dict(row.params.sequence_bias)
    sequences, biases = list(pairs), np.array(list(pairs.values()), dtype=np.float32)
    words = bans.BannedWords(sequences)
    singles = {sequence[0]: index for index, sequence in enumerate(sequences) if len(sequence) == 1}
    single_ids, single_biases = token_array(list(singles)), biases[list(singles.values())]

    def process(step: DecodingStep) -> None:
        ending = words.about_to_end(step)
        if not ending:
            if singles:
                step.writable()[single_ids] += single_biases
            return
        # All that goes to one token is summed up first, so that float32 rounds as in transformers.
        totals = dict(zip(singles, single_biases, strict=True))
        for index in ending:
            last = sequences[index][-1]
            totals[last] = totals.get(last, np.float32(0)) + biases[index]
        step.writable()[list(totals)] += np.array(list(totals.values()))

    return process


def repetition(row: Row) -> Processor:
    """repetition_penalty, on the tokens of prompt and output.

    Source: Keskar et al., "CTRL", 2019, section 4.1, with transformers' rule for negative scores.
    """
    penalty = row.params.repetition_penalty
    prompt = np.unique(token_array(row.prompt_token_ids))
    return lambda step: penalise(step, np.concatenate([prompt, step.output]), penalty)


def encoder_repetition(row: Row) -> Processor:
    """encoder_repetition_penalty: the inverse, on the prompt's tokens, which stand for an encoder's."""
    penalty = 1 / row.params.encoder_repetition_penalty
    prompt = np.unique(token_array(row.encoder_token_ids or row.prompt_token_ids))
    return lambda step: penalise(step, prompt, penalty)


def penalise(step: DecodingStep, token_ids: NDArray[np.int64], penalty: float) -> None:
    """Divides the scores of `token_ids` by `penalty`, or multiplies negative ones; each of them once."""
    factor = np.float32(penalty)
    scores = step.writable()
    seen = scores[token_ids]
    scores[token_ids] = np.where(seen < 0, seen * factor, seen / factor)


def frequency_and_presence(row: Row) -> Processor:
    """OpenAI's frequency_penalty, for each time that a token is in the output, and presence_penalty, once.

    Source: https://platform.openai.com/docs/api-reference/completions/create.
    """
    frequency = np.float32(row.params.frequency_penalty)
    presence = np.float32(row.params.presence_penalty)

    def process(step: DecodingStep) -> None:
        if step.row.step:
            token_ids, counts = np.unique(step.output, return_counts=True)
            step.writable()[token_ids] -= counts.astype(np.float32) * frequency + presence

    return process


_ORDER: tuple[tuple[Callable[[Row], Processor], tuple[str, ...]], ...] = (
    (logit_bias, ("logit_bias",)),
    (frequency_and_presence, ("frequency_penalty", "presence_penalty")),
    (sequence_bias, ("sequence_bias",)),
    (encoder_repetition, ("encoder_repetition_penalty",)),
    (repetition, ("repetition_penalty",)),
    (bans.repeated_ngrams, ("no_repeat_ngram_size",)),
    (bans.repeated_prompt_ngrams, ("encoder_no_repeat_ngram_size",)),
    (bans.bad_words, ("bad_words_ids",)),
    (early_end, ("min_length", "min_new_tokens")),
    (bans.allowed_by_callable, ("prefix_allowed_tokens_fn",)),
    (forced_beginning, ("forced_bos_token_id",)),
    (forced_end, ("forced_eos_token_id",)),
    (growing_end, ("exponential_decay_length_penalty",)),
    (bans.suppressed, ("suppress_tokens",)),
    (bans.suppressed_at_the_beginning, ("begin_suppress_tokens",)),
)
"""Functions that make processors, with the parameters that ask for each by not having their default."""


def adjust(scores: NDArray[np.float32], row: Row) -> NDArray[np.float32]:
    """Returns the row's scores [V] after its processors; `scores` itself, not a copy, when none changes any.

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
    return tuple(
        make(row)
        for make, names in _ORDER
        if any(getattr(row.params, name) != PARAMETERS[name].default for name in names)
    )


def renormalised(scores: NDArray[np.float32], params: DecodingParams) -> NDArray[np.float32]:
    """Returns log-probabilities (nats) of `scores` [n] if `renormalize_logits` asks for them, else `scores`
    itself.

    One score must be finite; a token at minus infinity stays there. Without sampling, `adjust` does this.
    With sampling it comes after the filters, so whoever applies those does it.
    """
    if not params.renormalize_logits:
        return scores
    shifted: NDArray[np.float32] = scores - scores.max()
    shifted -= logarithm(exponential(shifted).sum())
    return shifted
