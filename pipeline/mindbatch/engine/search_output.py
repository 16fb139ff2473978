"""What a search shows: the tokens on which its hypotheses agree, and its results."""

from __future__ import annotations

from collections.abc import Sequence as Items

from mindbatch.decoding import Hypothesis
from mindbatch.engine.request import CompletionOutput, StreamEvent
from mindbatch.engine.sequence import SequenceGroup


def agreed_events(group: SequenceGroup, kept: Items[Hypothesis]) -> list[StreamEvent]:
    """An event for each output of a running search, if its hypotheses have come to agree on more tokens.

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
    outputs = range(group.request.params.num_return_sequences)
    return [StreamEvent(group.request.key, index, text, tuple(added)) for index in outputs]


def result_events(group: SequenceGroup, results: Items[Hypothesis]) -> list[StreamEvent]:
    """Ends a search: its results become the group's outputs; an event with the rest of each."""
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
            )
        )
        events.append(StreamEvent(group.request.key, index, text, rest, hypothesis.finish_reason))
    return events


def _texts(group: SequenceGroup, rest: Items[int]) -> tuple[str, str]:
    """What the rest of the tokens adds to the agreed text, and both together."""
    if group.agreed is None:
        return "", ""
    text = group.agreed.fork()
    added = "".join(text.push(token) for token in rest) + text.flush()
    return added, text.text
