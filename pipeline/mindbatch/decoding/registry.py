"""The strategies by the parameter that asks for each; a new one is a class and a line here."""

from functools import cache

from mindbatch.decoding.params import PARAMETERS, DecodingParams
from mindbatch.decoding.sampling import SamplingStrategy
from mindbatch.decoding.strategy import DecodingStrategy

_SAMPLING = SamplingStrategy()
"""Serves whatever no parameter asks another strategy for: one token at a time, drawn or the likeliest."""
_ASKING = tuple(name for name, declared in PARAMETERS.items() if declared.asks is not None)
"""The parameters that ask for a strategy of their own by any value but their default."""
_SAMPLED = ", sampled"


@cache
def strategies() -> dict[str, DecodingStrategy]:
    """Returns one object of each strategy, which advances all of its requests in one call."""
    from mindbatch.decoding.beam_search import BeamSampling, BeamSearch, GroupBeamSearch
    from mindbatch.decoding.contrastive import ContrastiveSearch
    from mindbatch.decoding.embedding import Embedding
    from mindbatch.decoding.sampling import SampleAndRank
    from mindbatch.decoding.speculative import SpeculativeStrategy

    return {
        "num_beams": BeamSearch(),
        f"num_beams{_SAMPLED}": BeamSampling(),
        "num_beam_groups": GroupBeamSearch(),
        "penalty_alpha": ContrastiveSearch(),
        "best_of": SampleAndRank(),
        **dict.fromkeys(("num_assistant_tokens", "prompt_lookup_num_tokens"), SpeculativeStrategy()),
        "pooling": Embedding(),
    }


def strategy_for(params: DecodingParams) -> DecodingStrategy:
    """Returns the strategy of `params`; of two, one is a form of the other, whose parameter comes later."""
    asking = [name for name in _ASKING if getattr(params, name) != PARAMETERS[name].default]
    if not asking:
        return _SAMPLING
    is_sampled = asking[-1] == "num_beams" and not params.greedy
    return strategies()[asking[-1] + _SAMPLED * is_sampled]
