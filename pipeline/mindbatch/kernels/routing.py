"""Routing of a mixture of experts: which experts compute a token, and how much each counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Routing:
    """Scores are the softmax of the router's logits over all experts, or their sigmoids.

    The best `chosen` experts compute a token; ties go as torch.topk lets them. Each output is weighted
    with its score times `scale`.

    is_normalised: the scores of the chosen are divided by their sum.
    groups, chosen_groups: experts outside the best groups are never chosen.
    group_best: a group scores as much as so many of its best experts together.
    """

    experts: int
    chosen: int
    is_sigmoid: bool = False
    is_normalised: bool = True
    scale: float = 1.0
    groups: int = 1
    chosen_groups: int = 1
    group_best: int = 1
