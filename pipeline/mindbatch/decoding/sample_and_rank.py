"""Sample-and-rank: several samples of a prompt, of which the likeliest are returned.

Source: Adiwardana et al., "Towards a human-like open-domain chatbot", 2020, section 2.4.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.params import DecodingParams
from mindbatch.decoding.sampling import sample
from mindbatch.decoding.softmax import Summary
from mindbatch.decoding.strategy import Decision, GroupView, Hypothesis, guarded


class SampleAndRank:
    """Draws best_of samples as sampling does and returns the best num_return_sequences.

    A sample's score is its log-probability under the model's raw logits, divided by tokens**length_penalty;
    the earlier sample wins among equals.
    """

    searches = True
    needs_hidden = False

    def name(self, params: DecodingParams) -> str | None:
        return None if params.best_of is None else "sample_and_rank"

    def width(self, params: DecodingParams) -> int:
        return params.best_of or 1

    def begin(self, params: DecodingParams) -> Any:
        """Starts without ended samples; the state has them by sample index."""
        return dict[int, Hypothesis]()

    def advance(
        self, groups: Sequence[GroupView], logits: NDArray[np.float32], summary: Summary = None
    ) -> list[Decision]:
        sampled = sample(groups, logits, summary, self.width)
        both = zip(groups, sampled, strict=True)
        return [guarded(group, partial(_decide, group, decision)) for group, decision in both]


def _decide(group: GroupView, sampled: Decision) -> Decision:
    """Takes the samples that end out of the request's branches."""
    if sampled.error is not None:
        return sampled
    ended: dict[int, Hypothesis] = group.state
    params = group.rows[0].params
    live = []
    for branch in sampled.branches:
        [choice] = branch.choices
        reason = group.ending(branch.parent, choice.token_id)
        if reason is None:
            live.append(branch)
            continue
        row = group.rows[branch.parent]
        score = (row.cumulative_logprob + choice.logprob) / (row.step + 1) ** params.length_penalty
        ended[branch.sample_index] = Hypothesis.after(row, choice, reason, score)
    if live:
        return Decision(live, kept=list(ended.values()))
    # By sample index among equals: samples may end in any order, and the result must not depend on it.
    ranked = sorted(ended.items(), key=lambda item: (-_score(item[1]), item[0]))
    return Decision([], results=[hypothesis for _, hypothesis in ranked[: params.num_return_sequences]])


def _score(hypothesis: Hypothesis) -> float:
    assert hypothesis.score is not None
    return hypothesis.score
