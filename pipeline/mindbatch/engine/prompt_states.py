"""Hidden states of a prompt's tokens, gathered while its chunks pass through the model."""

from __future__ import annotations

from mindbatch.engine.runner import StepOutput
from mindbatch.engine.scheduler import Step


def gather_prompt_states(step: Step, output: StepOutput) -> None:
    """Adds what this step computed of prompts to `prompt_hidden` of the groups whose strategy needs it."""
    first = 0
    for tokens in step.scheduled:
        group = tokens.group
        if group.strategy.needs_hidden and not group.has_output:
            known = sum(map(len, group.prompt_hidden))
            # A prompt that was pre-empted or is not cached passes again; what is known already is left alone.
            skipped = max(0, known - tokens.start)
            places = range(first + skipped, first + tokens.stop - tokens.start)
            if places:
                group.prompt_hidden.append(output.hidden(places))
        first += tokens.stop - tokens.start
