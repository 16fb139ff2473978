"""Biases that the user adds to tokens' scores, and penalties on tokens that came before."""

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.processors.bans import BannedWords
from mindbatch.decoding.row import DecodingStep, Processor, Row, token_array


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
    words = BannedWords(sequences)
    singles = {sequence[0]: place for place, sequence in enumerate(sequences) if len(sequence) == 1}
    single_ids, single_biases = token_array(list(singles)), biases[list(singles.values())]

    def process(step: DecodingStep) -> None:
        ending = words.about_to_end(step)
        if not ending:
            if singles:
                step.writable()[single_ids] += single_biases
            return
        # All that goes to one token is summed up first, so that float32 rounds as in transformers.
        totals = dict(zip(singles, single_biases, strict=True))
        for place in ending:
            last = sequences[place][-1]
            totals[last] = totals.get(last, np.float32(0)) + biases[place]
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
