"""Asking a strategy how groups go on: what it sees of them, and who is to blame if it fails."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding import Decision, FinishReason, GroupView, Strategy
from mindbatch.decoding.strategy import guarded
from mindbatch.engine.endings import ending
from mindbatch.engine.runner import StepOutput
from mindbatch.engine.sequence import SequenceGroup
from mindbatch.errors import MindBatchError, PromptError


class Turn(NamedTuple):
    """A group whose next tokens are chosen in this step; the places in the step whose logits it needs."""

    group: SequenceGroup
    places: list[int]


def decide(turns: Sequence[Turn], output: StepOutput) -> list[Decision]:
    """What the strategy of these groups, one for all, decides for each.

    If it fails for all together it is asked for each alone, so that only the one to blame fails.
    """
    strategy = turns[0].group.strategy
    logits = output.logits([place for turn in turns for place in turn.places])
    views = [_view(turn, output) for turn in turns]
    try:
        return strategy.advance(views, logits)
    except MindBatchError as error:
        if not isinstance(error, PromptError):  # of the model, not of a row
            raise
    except Exception:
        pass
    parts = np.split(logits, np.cumsum([len(turn.places) for turn in turns])[:-1])
    pairs = zip(views, parts, strict=True)
    return [guarded(view, partial(_decide_alone, strategy, view, part)) for view, part in pairs]


def _decide_alone(strategy: Strategy, view: GroupView, logits: NDArray[np.float32]) -> Decision:
    [decision] = strategy.advance([view], logits)
    return decision


def _view(turn: Turn, output: StepOutput) -> GroupView:
    """What the strategy sees of a group."""
    group = turn.group
    sequences = group.sequences

    def why(row: int, token_id: int) -> FinishReason | None:
        return ending(sequences[row], token_id, group.max_tokens)

    hidden = prompt_hidden = None
    if group.strategy.needs_hidden:
        hidden = output.hidden(turn.places)
        prompt_hidden = np.concatenate(group.prompt_hidden) if group.prompt_hidden else None
    return GroupView([each.row for each in sequences], why, group.state, hidden, prompt_hidden)
