"""Biases that the user adds to the scores of tokens and of sequences of tokens."""

import numpy as np

from mindbatch.decoding.processors.words import Words
from mindbatch.decoding.row import Processor, Row, Step, token_array


def logit_bias(row: Row) -> Processor:
    """OpenAI's logit_bias, added to the scores of single tokens."""
    pairs = dict(row.params.logit_bias)
    token_ids, biases = token_array(list(pairs)), np.array(list(pairs.values()), dtype=np.float32)

    def process(step: Step) -> None:
        step.writable()[token_ids] += biases

    return process


def sequence_bias(row: Row) -> Processor:
    """sequence_bias: a sequence's bias goes to its last token where the others are the row's latest."""
    pairs = dict(row.params.sequence_bias)
    sequences, biases = list(pairs), np.array(list(pairs.values()), dtype=np.float32)
    words = Words(sequences)
    singles = {sequence[0]: place for place, sequence in enumerate(sequences) if len(sequence) == 1}
    single_ids, single_biases = token_array(list(singles)), biases[list(singles.values())]

    def process(step: Step) -> None:
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
