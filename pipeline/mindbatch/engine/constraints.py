"""Placeholder until the real one lands (same interface)."""

from mindbatch.data.tokenizer import Tokenizer
from mindbatch.decoding import Constraint, DecodingParams


class ConstraintFactory:
    def __init__(self, tokenizer: Tokenizer | None, vocab_size: int) -> None: ...

    def make(self, params: DecodingParams) -> Constraint | None:
        return None
