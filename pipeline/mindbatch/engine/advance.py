"""Follows a step: strategies decide, sequences get tokens, fork or end; what prompts ask for is gathered."""

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.row import FinishReason, token_logprobs
from mindbatch.decoding.strategy import Branch, Decision, DecodingStrategy, GroupView, Hypothesis, guarded
from mindbatch.engine.request import CompletionOutput, StreamEvent
from mindbatch.engine.scheduler import Scheduler
from mindbatch.engine.sequence import Sequence, SequenceGroup
from mindbatch.engine.step import ScheduledTokens, Step, StepOutput
from mindbatch.io.errors import MindBatchError, PromptError


@dataclass(slots=True)
class _GroupStep:
    """A group that continues in this step, and the indices of the step's tokens whose logits it needs."""

    group: SequenceGroup
    tokens: list[int]


def advance(
    step: Step, output: StepOutput, scheduler: Scheduler, forget: Callable[[Iterable[Sequence]], None]
) -> list[StreamEvent]:
    """Lets each strategy choose for all of its groups in one call; returns what became visible.

    forget: called with the sequences that their groups have dropped.
    """
    events: list[StreamEvent] = []
    for groups in _by_strategy(step):
        for group_step, decision in zip(groups, _decide(groups, output), strict=True):
            group = group_step.group
            group.prompt_hidden.clear()
            before = group.sequences
            try:
                events += _grow(group, decision, scheduler)
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
    """Lets the strategy that these groups share decide for all of them in one call.

    If the call for all raises, the strategy decides for each group alone, so that only the cause fails.
    """
    strategy = groups[0].group.strategy
    logits, summary = output.logits_and_summary(
        [token for group_step in groups for token in group_step.tokens]
    )
    views = [_view(group_step, output) for group_step in groups]
    try:
        return strategy.advance(views, logits, summary)
    except MindBatchError as error:
        if not isinstance(error, PromptError):  # of the model, not of a row
            raise
    except Exception:
        pass
    parts = np.split(logits, np.cumsum([len(group_step.tokens) for group_step in groups])[:-1])
    pairs = zip(views, parts, strict=True)
    return [guarded(view, _decide_alone, strategy, view, part) for view, part in pairs]


def _decide_alone(strategy: DecodingStrategy, view: GroupView, logits: NDArray[np.float32]) -> Decision:
    [decision] = strategy.advance([view], logits)
    return decision


def _view(group_step: _GroupStep, output: StepOutput) -> GroupView:
    group = group_step.group
    sequences = group.sequences

    def ending(row: int, token_id: int) -> FinishReason | None:
        return sequences[row].reason_to_finish_with(token_id, group.max_tokens)

    hidden = prompt_hidden = None
    if group.strategy.needs_hidden:
        hidden = output.hidden(group_step.tokens)
        prompt_hidden = np.concatenate(group.prompt_hidden) if group.prompt_hidden else None
    return GroupView([sequence.row for sequence in sequences], ending, group.state, hidden, prompt_hidden)


def _grow(group: SequenceGroup, decision: Decision, scheduler: Scheduler) -> list[StreamEvent]:
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
            return _agreed_events(group, decision.kept)
        scheduler.release(grown)
        group.sequences = []
        return _result_events(group, decision.results)
    events = [
        _sampled(group, sequence, branch, scheduler)
        for sequence, branch in zip(grown, decision.branches, strict=True)
    ]
    group.sequences = [sequence for sequence in grown if sequence.finish_reason is None]
    return events


def _forked(group: SequenceGroup, decision: Decision, scheduler: Scheduler) -> list[Sequence]:
    """Returns a sequence for each branch, without its new tokens; drops sequences without a branch."""
    parents, branches = group.sequences, decision.branches
    if len(parents) == len(branches) == 1:
        return parents
    # The first branch continues the parent itself; only the others cost a copy.
    first_branch = {branch.parent: index for index, branch in reversed(list(enumerate(branches)))}
    # While forking, so that a failure in between leaves all blocks with the group, which frees them.
    group.sequences = [*parents]
    grown = []
    for index, branch in enumerate(branches):
        sequence = parents[branch.parent]
        if first_branch[branch.parent] != index:
            sequence = scheduler.fork(sequence)
            group.sequences.append(sequence)
        grown.append(sequence)
    scheduler.release(parent for index, parent in enumerate(parents) if index not in first_branch)
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
            sequence.finish_reason = sequence.reason_to_finish(group.max_tokens)
            if sequence.finish_reason is not None:
                break
    added = row.output_token_ids[before:]
    sequence.num_drafted_tokens += len(draft)
    sequence.num_accepted_tokens += _common(added, draft)
    # Keys and values of accepted tokens are there; the last token's are computed in the next step.
    if scheduler.settings.is_recurrent:
        sequence.num_replayed_tokens = len(added) - 1
    else:
        sequence.num_computed_tokens += len(added) - 1
    if not scheduler.settings.use_past:
        sequence.num_computed_tokens = 0
    return text


def _common(added: list[int], draft: tuple[int, ...]) -> int:
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
    row, key = sequence.row, group.request.key
    added, logprobs = tuple(row.output_token_ids[before:]), _part(row.logprobs, before)
    return StreamEvent(key, branch.sample_index, text, added, sequence.finish_reason, logprobs)


def _part(logprobs: Items[dict[int, float]] | None, start: int) -> tuple[dict[int, float], ...] | None:
    """Returns the log-probabilities from a token on; None where the request has none."""
    return None if logprobs is None else tuple(logprobs[start:])


def _agreed_events(group: SequenceGroup, kept: Items[Hypothesis]) -> list[StreamEvent]:
    """Returns an event for each output of a running search, if its hypotheses agree on more tokens.

    kept: hypotheses that have ended and may still be returned; the live ones are the group's sequences.
    """
    start = group.num_agreed_tokens
    hypotheses: list[Items[int]] = [sequence.row.output_token_ids for sequence in group.sequences]
    hypotheses += [hypothesis.token_ids for hypothesis in kept]
    stop = start
    while all(len(tokens) > stop and tokens[stop] == hypotheses[0][stop] for tokens in hypotheses):
        stop += 1
    if stop == start:
        return []
    added = hypotheses[0][start:stop]
    group.num_agreed_tokens = stop
    text = "" if group.agreed is None else "".join(group.agreed.push(token) for token in added)
    logprobs = _part(group.sequences[0].row.logprobs, start)
    logprobs = logprobs and logprobs[: len(added)]
    outputs = range(group.request.params.num_return_sequences)
    return [StreamEvent(group.request.key, index, text, tuple(added), None, logprobs) for index in outputs]


def _result_events(group: SequenceGroup, results: Items[Hypothesis]) -> list[StreamEvent]:
    """Ends a search: its results become the group's outputs; returns an event with the rest of each."""
    events = []
    for index, hypothesis in enumerate(results):
        rest = hypothesis.token_ids[group.num_agreed_tokens :]
        text, whole = _texts(group, rest)
        group.finished.append(
            CompletionOutput(
                index=index,
                text=whole,
                token_ids=list(hypothesis.token_ids),
                finish_reason=hypothesis.finish_reason,
                cumulative_logprob=hypothesis.cumulative_logprob,
                logprobs=None if hypothesis.logprobs is None else list(hypothesis.logprobs),
                score=hypothesis.score,
                rank=None if hypothesis.score is None else index + 1,
                embedding=None if hypothesis.embedding is None else list(hypothesis.embedding),
            )
        )
        logprobs = _part(hypothesis.logprobs, group.num_agreed_tokens)
        events.append(StreamEvent(group.request.key, index, text, rest, hypothesis.finish_reason, logprobs))
    return events


def _texts(group: SequenceGroup, rest: Items[int]) -> tuple[str, str]:
    """Returns the text that the rest of the tokens adds to the agreed text, and both together."""
    if group.agreed is None:
        return "", ""
    text = group.agreed.fork()
    added = "".join(text.push(token) for token in rest) + text.flush()
    return added, text.text


ROWS_AT_ONCE = 64  # logits of a whole chunk would take chunk x vocabulary floats


class _Scored(NamedTuple):
    """A prompt token to score: its request, the index in the step of the logits that score it, and its id."""

    group: SequenceGroup
    token: int
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
    """Yields the prompt tokens that a chunk scores, which begins at token `first` of the step.

    The logits of position p score the token at position p + 1.
    """
    group, prompt = tokens.group, tokens.group.request.prompt_token_ids
    if group.prompt_logprobs is None:
        group.prompt_logprobs = [None] if group.request.params.prompt_logprobs_start == 0 else []
    start = max(tokens.start, group.first_unscored - 1)
    for position in range(start, min(tokens.stop, len(prompt) - 1)):
        yield _Scored(group, first + position - tokens.start, prompt[position + 1])


def _add_logprobs(rows: Items[_Scored], output: StepOutput) -> None:
    """Scores tokens of any number of requests; a request whose scores cannot be computed fails alone."""
    logits = output.logits([row.token for row in rows])  # what the model raises is not a row's
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
    indices = range(first + skipped, first + tokens.stop - tokens.start)
    if indices:
        tokens.group.prompt_hidden.append(output.hidden(indices))
