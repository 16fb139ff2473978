"""Carrying out what a strategy decided: sequences get tokens, fork, are dropped and end."""

from __future__ import annotations

from mindbatch.decoding import Branch, Decision
from mindbatch.engine.endings import finish_reason
from mindbatch.engine.request import StreamEvent
from mindbatch.engine.scheduler import Scheduler
from mindbatch.engine.search_output import agreed_events, result_events
from mindbatch.engine.sequence import Sequence, SequenceGroup


def grow(group: SequenceGroup, decision: Decision, scheduler: Scheduler) -> list[StreamEvent]:
    """Changes a group as its strategy decided; returns what became visible of it.

    A group with an error is over; what it has finished is dropped with it. Whatever is raised, the group's
    sequences hold all of its blocks.
    """
    if decision.error is not None:
        group.fail(decision.error)
        return []
    grown = _forked(group, decision, scheduler)
    if group.strategy.searches:
        for sequence, branch in zip(grown, decision.branches, strict=True):
            _extend(sequence, branch, group, scheduler)
        if decision.results is None:
            return agreed_events(group, decision.kept)
        scheduler.release(grown)
        group.sequences = []
        return result_events(group, decision.results)
    events = [
        _sampled(group, sequence, branch, scheduler)
        for sequence, branch in zip(grown, decision.branches, strict=True)
    ]
    group.sequences = [sequence for sequence in grown if sequence.finish_reason is None]
    return events


def _forked(group: SequenceGroup, decision: Decision, scheduler: Scheduler) -> list[Sequence]:
    """A sequence for each branch, none of which has its tokens yet; sequences without heirs are dropped."""
    parents, branches = group.sequences, decision.branches
    heirs = {branch.parent: index for index, branch in reversed(list(enumerate(branches)))}
    group.sequences = [*parents]
    grown = []
    for index, branch in enumerate(branches):
        sequence = parents[branch.parent]
        if heirs[branch.parent] != index:
            sequence = scheduler.fork(sequence)
            group.sequences.append(sequence)
        grown.append(sequence)
    scheduler.release(parent for place, parent in enumerate(parents) if place not in heirs)
    group.sequences = grown
    return grown


def _extend(sequence: Sequence, branch: Branch, group: SequenceGroup, scheduler: Scheduler) -> str:
    """Gives a sequence its tokens until it ends; returns the text that has become certain."""
    row = sequence.row
    row.sample_index = branch.sample_index
    draft = () if row.draft is None else row.draft.token_ids
    row.draft = None
    before, text = row.step, ""
    for choice in branch.choices:
        row.append(choice)
        text += "" if sequence.text is None else sequence.text.push(choice.token_id)
        if not group.strategy.searches:
            sequence.finish_reason = finish_reason(sequence, group.max_tokens)
            if sequence.finish_reason is not None:
                break
    added = row.output_token_ids[before:]
    sequence.num_drafted_tokens += len(draft)
    sequence.num_accepted_tokens += _common(added, draft)
    # Keys and values of accepted tokens are there; the last token's are computed in the next step.
    sequence.num_computed_tokens += len(added) - 1
    if not scheduler.settings.use_past:
        sequence.num_computed_tokens = 0
    return text


def _common(added: list[int], draft: tuple[int, ...]) -> int:
    """Tokens with which both begin."""
    count = 0
    while count < min(len(added), len(draft)) and added[count] == draft[count]:
        count += 1
    return count


def _sampled(group: SequenceGroup, sequence: Sequence, branch: Branch, scheduler: Scheduler) -> StreamEvent:
    """Gives an independent sequence its tokens; puts it among the finished ones if it ends."""
    before = sequence.row.step
    text = _extend(sequence, branch, group, scheduler)
    if sequence.finish_reason is not None:
        if sequence.text is not None:
            text += sequence.text.flush()
            if sequence.text.stop.stopped:  # what was held back may hold a stop string
                sequence.finish_reason = "stop"
        group.finished.append(sequence.output())
        scheduler.release([sequence])
    added = tuple(sequence.row.output_token_ids[before:])
    return StreamEvent(group.request.key, branch.sample_index, text, added, sequence.finish_reason)
