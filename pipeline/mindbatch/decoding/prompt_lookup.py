"""Prompt lookup: drafts what followed the last words of a text where they stood in it before."""

from itertools import chain

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.choice import Draft
from mindbatch.decoding.row import Row


def propose(row: Row, count: int) -> Draft | None:
    """At most `count` tokens, up to an end token, or None if the row's last token is new in it.

    They are those after the first occurrence of the row's last n-gram, for the largest n that has one and is
    at most max_matching_ngram_size. Source: Saxena, "Prompt Lookup Decoding", 2023, with transformers' choice
    among occurrences (4.57, generation/candidate_generator.py).
    """
    length = len(row.prompt_token_ids) + row.step
    text = np.fromiter(chain(row.prompt_token_ids, row.output_token_ids), np.int64, length)
    end = _first_occurrence(text, row.params.max_matching_ngram_size)
    if end is None:
        return None
    tokens = text[end : end + count]
    stops = np.flatnonzero(np.isin(tokens, row.eos_token_ids))
    if stops.size > 0:
        tokens = tokens[: stops[0]]
    return Draft(tuple(tokens.tolist())) if tokens.size > 0 else None


def _first_occurrence(text: NDArray[np.int64], longest: int) -> int | None:
    """The place after the first earlier occurrence of the text's last n-gram, n at most `longest`."""
    lasts = np.flatnonzero(text[:-1] == text[-1])  # where an occurrence may have its last token
    size = 1
    while size < longest and lasts.size > 0:
        longer = lasts[lasts >= size]
        longer = longer[text[longer - size] == text[-1 - size]]
        if longer.size == 0:
            break
        lasts, size = longer, size + 1
    return int(lasts[0]) + 1 if lasts.size > 0 else None
