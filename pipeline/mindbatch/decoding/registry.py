"""Which strategy serves which parameters; a new strategy is a new file and a line here."""

from mindbatch.decoding.beam_sampling import BeamSampling
from mindbatch.decoding.beam_search import BeamSearch
from mindbatch.decoding.contrastive import ContrastiveSearch
from mindbatch.decoding.group_beam_search import GroupBeamSearch
from mindbatch.decoding.params import DecodingParams
from mindbatch.decoding.sample_and_rank import SampleAndRank
from mindbatch.decoding.sampling import SamplingStrategy
from mindbatch.decoding.speculative import SpeculativeStrategy
from mindbatch.decoding.strategy import Strategy

_SAMPLING = SamplingStrategy()
STRATEGIES: dict[str, Strategy] = {
    "greedy": _SAMPLING,
    "sampling": _SAMPLING,
    "beam_search": BeamSearch(),
    "beam_sampling": BeamSampling(),
    "group_beam_search": GroupBeamSearch(),
    "sample_and_rank": SampleAndRank(),
    "contrastive": ContrastiveSearch(),
    "speculative": SpeculativeStrategy(),
}
"""One object of each: it serves all requests that use it, so that they advance in one call."""


def strategy_for(params: DecodingParams) -> Strategy:
    """The strategy for `params`."""
    return STRATEGIES[strategy_name(params)]


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
