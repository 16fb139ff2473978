"""Choosing the next tokens: parameters, randomness, logits processing, strategies and stop strings."""

from mindbatch.decoding.choice import Choice, FinishReason
from mindbatch.decoding.constraint import Constraint
from mindbatch.decoding.draft import Draft
from mindbatch.decoding.params import DecodingParams
from mindbatch.decoding.registry import strategy_for
from mindbatch.decoding.row import Row
from mindbatch.decoding.row_error import row_error
from mindbatch.decoding.stop import StopMatcher
from mindbatch.decoding.strategy import Branch, Decision, GroupView, Hypothesis, Strategy
from mindbatch.decoding.strategy_names import strategy_name

__all__ = [
    "Branch",
    "Choice",
    "Constraint",
    "Decision",
    "DecodingParams",
    "Draft",
    "FinishReason",
    "GroupView",
    "Hypothesis",
    "Row",
    "StopMatcher",
    "Strategy",
    "row_error",
    "strategy_for",
    "strategy_name",
]
