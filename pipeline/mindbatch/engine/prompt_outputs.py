"""What is gathered of prompts while their chunks pass through the model: log-probabilities, hidden states."""

from __future__ import annotations

import numpy as np

from mindbatch.decoding.raw_scores import token_logprobs
from mindbatch.engine.runner import StepOutput
from mindbatch.engine.scheduler import ScheduledTokens, Step

ROWS_AT_ONCE = 64  # logits of a whole chunk would take chunk x vocabulary floats


def gather_prompt_outputs(step: Step, output: StepOutput) -> None:
    """Adds what this step computed of prompts to the groups that ask for it.

    A prompt that was pre-empted or is not cached passes again; what is known of it already is left alone.
    """
    first = 0
    for tokens in step.scheduled:
        group = tokens.group
        if group.request.params.prompt_logprobs is not None:
            _add_logprobs(tokens, first, output)
        if group.strategy.needs_hidden and not group.has_output:
            _add_hidden(tokens, first, output)
        first += tokens.stop - tokens.start


def _add_logprobs(tokens: ScheduledTokens, first: int, output: StepOutput) -> None:
    """Scores each prompt token whose predecessor is in a chunk that begins at `first` of the step.

    The logits of position p score position p + 1.
    """
    group, prompt = tokens.group, tokens.group.request.prompt_token_ids
    if group.prompt_logprobs is None:
        group.prompt_logprobs = [None]
    start = max(tokens.start, len(group.prompt_logprobs) - 1)
    count = group.request.params.prompt_logprobs or 0
    for low in range(start, min(tokens.stop, len(prompt) - 1), ROWS_AT_ONCE):
        high = min(low + ROWS_AT_ONCE, tokens.stop, len(prompt) - 1)
        places = range(first + low - tokens.start, first + high - tokens.start)
        targets = np.asarray(prompt[low + 1 : high + 1], np.int64)
        logits = output.logits(places)  # what the model raises is not the row's
        try:
            group.prompt_logprobs += token_logprobs(logits, targets, count)
        except Exception as error:
            group.fail(error)
            return


def _add_hidden(tokens: ScheduledTokens, first: int, output: StepOutput) -> None:
    known = sum(map(len, tokens.group.prompt_hidden))
    skipped = max(0, known - tokens.start)
    places = range(first + skipped, first + tokens.stop - tokens.start)
    if places:
        tokens.group.prompt_hidden.append(output.hidden(places))
