"""Log-probabilities of a prompt's own tokens, gathered while its chunks pass through the model."""

from __future__ import annotations

import numpy as np

from mindbatch.decoding.logprobs import token_logprobs
from mindbatch.engine.runner import StepOutput
from mindbatch.engine.scheduler import ScheduledTokens, Step

ROWS_AT_ONCE = 64  # logits of a whole chunk would take chunk x vocabulary floats


class PromptScorer:
    """Fills `prompt_logprobs` of the groups that ask for them."""

    def score(self, step: Step, output: StepOutput) -> None:
        """Scores each prompt token whose predecessor was in this step."""
        first = 0
        for tokens in step.scheduled:
            if tokens.group.request.params.prompt_logprobs is not None:
                self._score_chunk(tokens, first, output)
            first += tokens.stop - tokens.start

    def _score_chunk(self, tokens: ScheduledTokens, first: int, output: StepOutput) -> None:
        """`first`: where the chunk begins in the step. The logits of position p score position p + 1."""
        group, prompt = tokens.group, tokens.group.request.prompt_token_ids
        if group.prompt_logprobs is None:
            group.prompt_logprobs = [None]
        # A pre-empted or uncached prompt passes again; what is scored already is left alone.
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
