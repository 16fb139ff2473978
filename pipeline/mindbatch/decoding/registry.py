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
from mindbatch.decoding.strategy_names import strategy_name

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
