"""Collects a step's results on prompts for the requests that ask for log-probabilities or hidden states."""

from collections.abc import Iterator
from collections.abc import Sequence as Items
from itertools import islice
from typing import NamedTuple

import numpy as np

from mindbatch.decoding.row import token_logprobs
from mindbatch.engine.runner import StepOutput
from mindbatch.engine.sequence import SequenceGroup
from mindbatch.engine.step import ScheduledTokens, Step

ROWS_AT_ONCE = 64  # logits of a whole chunk would take chunk x vocabulary floats


class _Scored(NamedTuple):
    """A prompt token to score: of which request, and the token of the step whose logits score it."""

    group: SequenceGroup
    place: int
    target: int


def gather_prompt_outputs(step: Step, output: StepOutput) -> None:
    """Adds what this step computed of prompts to the groups that ask for it.

    A prompt that was pre-empted or is not cached passes again; what is known of it already is left alone.
    """
    first, scored = 0, list[_Scored]()
    for tokens in step.scheduled:
        group = tokens.group
        if group.request.params.prompt_logprobs is not None:
            scored += _scored(tokens, first)
        if group.strategy.needs_hidden and not group.has_output:
            _add_hidden(tokens, first, output)
        first += tokens.stop - tokens.start
    remaining = iter(scored)
    while rows := [*islice(remaining, ROWS_AT_ONCE)]:
        _add_logprobs(rows, output)


def _scored(tokens: ScheduledTokens, first: int) -> Iterator[_Scored]:
    """The prompt tokens that a chunk which begins at `first` of the step scores: the logits of position p are
    those of position p + 1."""
    group, prompt = tokens.group, tokens.group.request.prompt_token_ids
    if group.prompt_logprobs is None:
        group.prompt_logprobs = [None] if group.request.params.prompt_logprobs_start == 0 else []
    start = max(tokens.start, group.first_unscored - 1)
    for place in range(start, min(tokens.stop, len(prompt) - 1)):
        yield _Scored(group, first + place - tokens.start, prompt[place + 1])


def _add_logprobs(rows: Items[_Scored], output: StepOutput) -> None:
    """Scores tokens, of several requests perhaps. One whose scores cannot be read off fails alone."""
    logits = output.logits([row.place for row in rows])  # what the model raises is not a row's
    for group in dict.fromkeys(row.group for row in rows):
        chosen = [index for index, row in enumerate(rows) if row.group is group]
        targets = np.asarray([rows[index].target for index in chosen], np.int64)
        assert group.prompt_logprobs is not None
        try:
            count = group.request.params.prompt_logprobs or 0
            group.prompt_logprobs += token_logprobs(logits[chosen], targets, count)
        except Exception as error:
            group.fail(error)


def _add_hidden(tokens: ScheduledTokens, first: int, output: StepOutput) -> None:
    known = tokens.sequence.num_encoder_tokens + sum(map(len, tokens.group.prompt_hidden))
    skipped = max(0, known - tokens.start)
    places = range(first + skipped, first + tokens.stop - tokens.start)
    if places:
        tokens.group.prompt_hidden.append(output.hidden(places))
