"""The names of the strategies, and which of them parameters ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mindbatch.decoding.params import DecodingParams


def strategy_name(params: DecodingParams) -> str:
    """The name of the strategy that `params` ask for."""
    if params.penalty_alpha > 0:
        return "contrastive"
    if params.num_beam_groups > 1:
        return "group_beam_search"
    if params.num_beams > 1:
        return "beam_search" if params.greedy else "beam_sampling"
    if params.best_of is not None:
        return "sample_and_rank"
    if params.num_assistant_tokens or params.prompt_lookup_num_tokens:
        return "speculative"
    return "greedy" if params.greedy else "sampling"
