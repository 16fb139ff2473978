"""The strategies, in the order in which they are asked; a new one is a class and a line here."""

from functools import cache

from mindbatch.decoding.params import PARAMETERS, DecodingParams
from mindbatch.decoding.sampling import SamplingStrategy
from mindbatch.decoding.strategy import DecodingStrategy

_SAMPLING = SamplingStrategy()
"""Serves whatever no parameter asks another strategy for: one token at a time, drawn or the likeliest."""


@cache
def strategies() -> tuple[DecodingStrategy, ...]:
    """One object of each: it serves all requests that use it, so that they advance in one call."""
    from mindbatch.decoding.beam_search import BeamSampling, BeamSearch, GroupBeamSearch
    from mindbatch.decoding.contrastive import ContrastiveSearch
    from mindbatch.decoding.embedding import Embedding
    from mindbatch.decoding.sampling import SampleAndRank
    from mindbatch.decoding.speculative import SpeculativeStrategy

    return (
        ContrastiveSearch(),
        GroupBeamSearch(),
        BeamSearch(),
        BeamSampling(),
        SampleAndRank(),
        SpeculativeStrategy(),
        Embedding(),
        _SAMPLING,
    )


def strategy_for(params: DecodingParams) -> DecodingStrategy:
    """The first strategy that `params` ask for; the last one serves whatever is left."""
    if not any(getattr(params, name) != PARAMETERS[name].default for name in _ASKING):
        return _SAMPLING
    return next(strategy for strategy in strategies() if strategy.name(params))


def strategy_name(params: DecodingParams) -> str:
    return str(strategy_for(params).name(params))


_ASKING = tuple(name for name, declared in PARAMETERS.items() if declared.asks is not None)
"""The parameters that ask for a strategy of their own by any value but their default."""
