"""Between two runs of the model: what a step gave prompts, how groups continue, and their next drafts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.choice import Draft, FinishReason
from mindbatch.decoding.drafting import propose as look_up
from mindbatch.decoding.raw_scores import token_logprobs
from mindbatch.decoding.row import Row
from mindbatch.decoding.strategy import Decision, GroupView, Strategy, guarded
from mindbatch.engine.growth import grow
from mindbatch.engine.request import StreamEvent
from mindbatch.engine.runner import StepOutput
from mindbatch.engine.scheduler import ScheduledTokens, Scheduler, Step
from mindbatch.engine.sequence import Sequence, SequenceGroup
from mindbatch.errors import MindBatchError, PromptError


class Assistant(Protocol):
    """A smaller model that guesses tokens."""

    def propose(self, rows: Items[Row], counts: Items[int]) -> list[Draft | None]:
        """For each row, as many tokens as are asked for, or None where it cannot guess."""
        ...

    def forget(self, row: Row) -> None:
        """The row is not asked for again, or not soon."""
        ...


@dataclass(slots=True)
class _GroupStep:
    """A group that goes on in this step, and the step's tokens whose logits it needs, counted from 0."""

    group: SequenceGroup
    tokens: list[int]


def advance(
    step: Step, output: StepOutput, scheduler: Scheduler, forget: Callable[[Iterable[Sequence]], None]
) -> list[StreamEvent]:
    """Lets each strategy choose for all of its groups in one call; returns what became visible.

    forget: is given the sequences that their groups have dropped.
    """
    events: list[StreamEvent] = []
    for groups in _by_strategy(step):
        for each, decision in zip(groups, _decide(groups, output), strict=True):
            group = each.group
            group.prompt_hidden.clear()
            before = group.sequences
            try:
                events += grow(group, decision, scheduler)
            except Exception as error:
                group.fail(error)
            forget(sequence for sequence in before if sequence not in group.sequences)
    return events


def _by_strategy(step: Step) -> Iterable[list[_GroupStep]]:
    by_strategy: dict[int, dict[int, _GroupStep]] = {}
    end = 0
    for tokens in step.scheduled:
        end += tokens.stop - tokens.start
        if tokens.num_logits and not tokens.group.is_finished:
            groups = by_strategy.setdefault(id(tokens.group.strategy), {})
            group = groups.setdefault(id(tokens.group), _GroupStep(tokens.group, []))
            group.tokens.extend(range(end - tokens.num_logits, end))
    return [list(groups.values()) for groups in by_strategy.values()]


def _decide(groups: Items[_GroupStep], output: StepOutput) -> list[Decision]:
    """What the strategy of these groups, one for all, decides for each.

    If it fails for all together it is asked for each alone, so that only the one to blame fails.
    """
    strategy = groups[0].group.strategy
    logits = output.logits([token for each in groups for token in each.tokens])
    views = [_view(each, output) for each in groups]
    try:
        return strategy.advance(views, logits)
    except MindBatchError as error:
        if not isinstance(error, PromptError):  # of the model, not of a row
            raise
    except Exception:
        pass
    parts = np.split(logits, np.cumsum([len(each.tokens) for each in groups])[:-1])
    pairs = zip(views, parts, strict=True)
    return [guarded(view, partial(_decide_alone, strategy, view, part)) for view, part in pairs]


def _decide_alone(strategy: Strategy, view: GroupView, logits: NDArray[np.float32]) -> Decision:
    [decision] = strategy.advance([view], logits)
    return decision


def _view(each: _GroupStep, output: StepOutput) -> GroupView:
    """What the strategy sees of a group."""
    group = each.group
    sequences = group.sequences

    def ending(row: int, token_id: int) -> FinishReason | None:
        return sequences[row].reason_to_finish_with(token_id, group.max_tokens)

    hidden = prompt_hidden = None
    if group.strategy.needs_hidden:
        hidden = output.hidden(each.tokens)
        prompt_hidden = np.concatenate(group.prompt_hidden) if group.prompt_hidden else None
    return GroupView([each.row for each in sequences], ending, group.state, hidden, prompt_hidden)


def draft(groups: Iterable[SequenceGroup], assistant: Assistant | None) -> None:
    """Gives a draft to each sequence that asks for one and has none.

    What a row is given depends on the row alone. A draft stays until it is verified, through a pre-emption
    too, and leaves room for the token that follows it.
    """
    asked: list[tuple[Row, int]] = []
    for group in groups:
        params = group.request.params
        if params.num_draft_tokens and group.has_output and group.is_decoding:
            for sequence in group.sequences:
                count = min(params.num_draft_tokens, group.max_tokens - len(sequence) - 1)
                if count > 0 and sequence.row.draft is None:
                    try:
                        _draft(sequence, count, asked)
                    except Exception as error:
                        group.fail(error)
    if asked:
        assert assistant is not None
        rows, counts = zip(*asked, strict=True)
        for row, drafted in zip(rows, assistant.propose(rows, counts), strict=True):
            row.draft = drafted


def _draft(sequence: Sequence, count: int, asked: list[tuple[Row, int]]) -> None:
    """Looks a draft up in the row, or puts the row down for the assistant."""
    row = sequence.row
    if row.params.prompt_lookup_num_tokens:
        row.draft = look_up(row, count)
    else:
        asked.append((row, count))


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
