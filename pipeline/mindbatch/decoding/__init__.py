"""Choosing the next tokens: parameters, randomness, logits processing, strategies and stop strings."""

from mindbatch.decoding.params import DecodingParams

__all__ = ["DecodingParams"]
