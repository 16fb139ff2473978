"""The strategies, in the order in which they are asked; a new one is a new file and a line here."""

from mindbatch.decoding.beam_sampling import BeamSampling
from mindbatch.decoding.beam_search import BeamSearch
from mindbatch.decoding.contrastive import ContrastiveSearch
from mindbatch.decoding.group_beam_search import GroupBeamSearch
from mindbatch.decoding.params import DecodingParams
from mindbatch.decoding.sample_and_rank import SampleAndRank
from mindbatch.decoding.sampling import SamplingStrategy
from mindbatch.decoding.speculative import SpeculativeStrategy
from mindbatch.decoding.strategy import DecodingStrategy

STRATEGIES: tuple[DecodingStrategy, ...] = (
    ContrastiveSearch(),
    GroupBeamSearch(),
    BeamSearch(),
    BeamSampling(),
    SampleAndRank(),
    SpeculativeStrategy(),
    SamplingStrategy(),
)
"""One object of each: it serves all requests that use it, so that they advance in one call."""


def strategy_for(params: DecodingParams) -> DecodingStrategy:
    """The first strategy that `params` ask for; the last one serves whatever is left."""
    return next(strategy for strategy in STRATEGIES if strategy.name(params))


def strategy_name(params: DecodingParams) -> str:
    return next(name for strategy in STRATEGIES if (name := strategy.name(params)))
