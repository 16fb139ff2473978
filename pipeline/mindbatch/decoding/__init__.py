"""Choosing the next tokens: parameters, randomness, logits processing, strategies and stop strings."""

from mindbatch.decoding.params import DecodingParams
from mindbatch.decoding.registry import strategy_for, strategy_name
from mindbatch.decoding.row import Row
from mindbatch.decoding.stop import StopMatcher
from mindbatch.decoding.strategy import Branch, GroupView, Strategy

__all__ = [
    "Branch",
    "DecodingParams",
    "GroupView",
    "Row",
    "StopMatcher",
    "Strategy",
    "strategy_for",
    "strategy_name",
]
