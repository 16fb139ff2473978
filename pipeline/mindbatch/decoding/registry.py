"""Which strategy serves which parameters; a new strategy is a new file and a line here."""

from mindbatch.decoding.params import DecodingParams
from mindbatch.decoding.sampling import SamplingStrategy
from mindbatch.decoding.strategy import Strategy

_SAMPLING = SamplingStrategy()
_STRATEGIES: dict[str, Strategy] = {"greedy": _SAMPLING, "sampling": _SAMPLING}


def strategy_name(params: DecodingParams) -> str:
    """The name of the strategy that `params` ask for."""
    return "greedy" if params.greedy else "sampling"


def strategy_for(params: DecodingParams) -> Strategy:
    """The strategy for `params`: one object for all requests it serves, so that they advance in one call."""
    return _STRATEGIES[strategy_name(params)]
