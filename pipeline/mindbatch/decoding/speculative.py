"""Speculative decoding: drafted tokens are verified in one step, and the output is the model's own."""

from collections.abc import Sequence
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.candidates import Candidates, draw_by_weight
from mindbatch.decoding.draws import Draw, draw_tokens
from mindbatch.decoding.filters import sampling_candidates
from mindbatch.decoding.processors import adjust
from mindbatch.decoding.row import Draft, RawScores, Row, TokenChoice, row_uniforms
from mindbatch.decoding.sampling import SamplingStrategy
from mindbatch.decoding.softmax import Summary, softmax
from mindbatch.decoding.strategy import Branch, Decision, GroupView, guarded
from mindbatch.io.errors import CheckpointError

_TEST_STREAM = 1
"""Stream of the random numbers that accept or refuse drawn tokens; stream 0 draws, as in plain sampling."""


class SpeculativeStrategy(SamplingStrategy):
    """Appends the accepted draft tokens to each row, and one more token of the model's own.

    Greedy output is that of plain greedy decoding, token for token, and so is sampled output where the draft
    is certain. Where it was drawn, sampled output has the distribution of plain sampling. Rows without a
    draft are decoded plainly.
    """

    def advance(
        self, groups: Sequence[GroupView], logits: NDArray[np.float32], summary: Summary = None
    ) -> list[Decision]:
        drafted = np.array([any(row.draft is not None for row in group.rows) for group in groups])
        if not drafted.any():
            return super().advance(groups, logits, summary)
        counts = [sum(map(_num_logits, group.rows)) for group in groups]
        ours = np.repeat(drafted, counts)
        if ours.all():
            return _verify(groups, logits, summary)
        parts = [None if summary is None else summary[which] for which in (ours, ~ours)]
        verified = iter(_verify(_where(groups, drafted), logits[ours], parts[0]))
        plain = iter(super().advance(_where(groups, ~drafted), logits[~ours], parts[1]))
        return [next(verified if one else plain) for one in drafted]


def _where(groups: Sequence[GroupView], chosen: NDArray[np.bool_]) -> list[GroupView]:
    return [group for group, one in zip(groups, chosen, strict=True) if one]


def _num_logits(row: Row) -> int:
    return 1 if row.draft is None else 1 + len(row.draft.token_ids)


def _verify(groups: Sequence[GroupView], logits: NDArray[np.float32], summary: Summary) -> list[Decision]:
    """Returns a branch for each row of each group; none of these rows is about to fork into samples."""
    rows = [row for group in groups for row in group.rows]
    counts = [_num_logits(row) for row in rows]
    raw = RawScores.of(
        [row for row, count in zip(rows, counts, strict=True) for _ in range(count)], logits, summary
    )
    row_draws = iter(zip(np.cumsum([0, *counts[:-1]]).tolist(), _uniforms(rows, counts), strict=True))
    decisions = []
    for group in groups:
        own = list(islice(row_draws, len(group.rows)))
        decisions.append(guarded(group, _decide, group, raw, own))
    return decisions


def _decide(
    group: GroupView, raw: RawScores, row_draws: Sequence[tuple[int, NDArray[np.float64]]]
) -> Decision:
    """Decides for a request. row_draws: for each row the start of its logits, and its uniform numbers."""
    branches = [
        Branch(parent, row.sample_index, _verify_row(row, raw, start, numbers))
        for parent, (row, (start, numbers)) in enumerate(zip(group.rows, row_draws, strict=True))
    ]
    return Decision(branches)


def _uniforms(rows: Sequence[Row], counts: Sequence[int]) -> list[NDArray[np.float64]]:
    """Returns uniform numbers [2, count] for each row, to draw and to test; [2, 0] for a greedy row."""
    draws = [
        [(row.sample_index, row.step + ahead) for ahead in range(count)]
        for row, count in zip(rows, counts, strict=True)
    ]
    streams = [row_uniforms(rows, draws, stream) for stream in (0, _TEST_STREAM)]
    return [np.stack(numbers) for numbers in zip(*streams, strict=True)]


def _verify_row(
    row: Row, raw: RawScores, start: int, numbers: NDArray[np.float64]
) -> tuple[TokenChoice, ...]:
    """Returns the tokens after the row, whose logits begin at `start`: at most one more than were drafted.

    They end with the first that differs from the draft, or an end token.
    """
    drafted = () if row.draft is None else row.draft.token_ids
    choices: list[TokenChoice] = []
    so_far = row
    for ahead in range(len(drafted) + 1):
        token = _token(row, so_far, raw, start, ahead, numbers)
        choices.append(raw.choice(start + ahead, token))
        # What follows was computed behind the drafted token: after another one it is of another text.
        if ahead == len(drafted) or token != drafted[ahead] or token in row.eos_token_ids:
            break
        so_far = row.fork() if so_far is row else so_far
        so_far.append(choices[-1])
        if so_far.constraint is not None and so_far.constraint.is_complete:
            break
    return tuple(choices)


def _token(
    row: Row, so_far: Row, raw: RawScores, start: int, ahead: int, numbers: NDArray[np.float64]
) -> int:
    """Returns the token `ahead` after the row; `so_far` is the row with the accepted tokens before it."""
    logits = raw.logits[start + ahead]
    scores = adjust(logits, so_far)
    if row.params.greedy:
        return int(raw.likeliest[start + ahead] if scores is logits else scores.argmax())
    number, test = numbers[:, ahead]
    draft = row.draft
    if draft is None or draft.probabilities is None or ahead == len(draft.token_ids):
        # A certain token is accepted as often as it is drawn, and else the draw is from the others: to draw
        # and compare is the same, and leaves the output what it is without a draft.
        changed = None if scores is logits else scores
        [drawn] = draw_tokens(logits[np.newaxis], [Draw(changed, row.params, numbers[:1, ahead])]).tokens
        if isinstance(drawn, Exception):
            raise drawn
        return drawn[0]
    candidates = sampling_candidates(scores, row.params)
    return _accepted_or_drawn(candidates, draft.token_ids[ahead], draft.probabilities[ahead], number, test)


def _accepted_or_drawn(
    candidates: Candidates, token: int, guessed: NDArray[np.float32], number: float, test: float
) -> int:
    """Returns a token with the candidates' distribution p, from one that was drawn from `guessed`, q [V].

    The token is accepted with probability min(1, p/q); else another is drawn, in proportion to what p has
    more than q. Source: Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative
    Decoding", ICML 2023, section 2.3.
    """
    wanted = candidates.probabilities
    ids = candidates.tokens(np.arange(wanted.size))
    matches = np.flatnonzero(ids == token)
    # test < p / q, without a division by a q that may be 0.
    if matches.size > 0 and test * guessed[token] < wanted[matches[0]]:
        return token
    lacking = np.maximum(wanted - guessed[ids], np.float32(0.0))
    if lacking.max() == 0.0:  # p and q differ by rounding only
        return int(candidates.draw(np.array([number]))[0])
    return int(ids[draw_by_weight(lacking, np.array([number]))[0]])


_DRAFT_STREAM = 2
"""Stream of the random numbers that guess tokens: they must not be those that verify them."""


class Guess(NamedTuple):
    """A token, and the distribution [V] that it was drawn from; None for a greedy row."""

    token_id: int
    probabilities: NDArray[np.float32] | None


def guess(rows: Sequence[Row], logits: NDArray[np.float32]) -> list[Guess | None]:
    """Returns a guess after each row from the assistant's logits [S, V], chosen as the row's own tokens are.

    It is None if that fails or no token is left, which is no error, as the row may never come to this token.

    Raises CheckpointError when logits are not finite numbers.
    """
    likeliest = logits.argmax(axis=1)
    if not np.isfinite(logits[np.arange(len(rows)), likeliest]).all():
        raise CheckpointError(
            "logits of model.assistant: NaN or infinite; its weights or its number format do not fit"
        )
    numbers = row_uniforms(rows, [[(row.sample_index, row.step)] for row in rows], _DRAFT_STREAM)
    guesses: list[Guess | None] = []
    for row, own, best, number in zip(rows, logits, likeliest, numbers, strict=True):
        try:
            guesses.append(_guess(row, own, int(best), number))
        except Exception:  # if the row comes as far as this, its own step fails in the same way and says so
            guesses.append(None)
    return guesses


def _guess(row: Row, logits: NDArray[np.float32], likeliest: int, number: NDArray[np.float64]) -> Guess:
    """`number` [1] is what to draw with; none for a greedy row."""
    scores = adjust(logits, row)
    if row.params.greedy:
        return Guess(likeliest if scores is logits else int(scores.argmax()), None)
    candidates = sampling_candidates(scores, row.params)
    return Guess(int(candidates.draw(number)[0]), softmax(candidates.dense(logits.size)))


def propose(row: Row, count: int) -> Draft | None:
    """Drafts at most `count` tokens, up to an end token; None if the row's last token is new in it.

    They are the tokens after the first occurrence of the row's last n-gram, for the largest n that has one
    and is at most max_matching_ngram_size. Source: Saxena, "Prompt Lookup Decoding", 2023, with transformers'
    choice among occurrences (4.57, generation/candidate_generator.py).
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
    """Returns the index after the first earlier occurrence of the text's last n-gram, n at most `longest`."""
    lasts = np.flatnonzero(text[:-1] == text[-1])  # where an occurrence may have its last token
    size = 1
    while size < longest and lasts.size > 0:
        longer = lasts[lasts >= size]
        longer = longer[text[longer - size] == text[-1 - size]]
        if longer.size == 0:
            break
        lasts, size = longer, size + 1
    return int(lasts[0]) + 1 if lasts.size > 0 else None
