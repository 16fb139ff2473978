"""Tokenizers under constraints, and random walks that obey them, for the tests of constraints."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from small_tokenizers import byte_level, sentencepiece_like, unigram
from tokenizers import Tokenizer as Backend

from mindbatch.decoding import DecodingParams
from mindbatch.decoding.grammar_constraint import GrammarConstraint
from mindbatch.engine.constraints import ConstraintFactory
from mindbatch.prompts.token_bytes import IncrementalDetokenizer, LoadedTokenizer
from mindbatch.prompts.tokenizer import Tokenizer

PADDING = 9
"""Ids of the model that its tokenizer does not know."""


def wrap(backend: Backend) -> Tokenizer:
    return Tokenizer(
        LoadedTokenizer(
            backend=backend,
            bos_token_id=None,
            eos_token_id=None,
            unk_token_id=None,
            named_tokens={},
            templates={},
        )
    )


TOKENIZERS = {
    "byte_level": wrap(byte_level()),
    "sentencepiece": wrap(sentencepiece_like()),
    "metaspace": wrap(sentencepiece_like(metaspace=True)),
    "unigram": wrap(unigram()),
}
END = {"byte_level": 0, "sentencepiece": 2, "metaspace": 2, "unigram": 1}
"""A control token that ends an output."""
FACTORIES = {name: ConstraintFactory(each, each.vocab_size + PADDING) for name, each in TOKENIZERS.items()}
COMPLETE = ["byte_level", "sentencepiece", "metaspace"]
"""Those that can write every text."""


def make(name: str, prompt: Sequence[int] = (), **parameters: Any) -> GrammarConstraint:
    made = FACTORIES[name].make(DecodingParams(**parameters), prompt)
    assert made is not None
    return made


def text_of(name: str, tokens: Sequence[int], prompt: Sequence[int] = ()) -> str:
    detokenizer = IncrementalDetokenizer(TOKENIZERS[name], prompt)
    return "".join([detokenizer.push(token) for token in tokens]) + detokenizer.flush()


def walk(
    constraint: GrammarConstraint, rng: np.random.Generator, eos: tuple[int, ...], most: int = 400
) -> tuple[list[int], bool]:
    """Random tokens under the constraint, and whether they ended; an end is taken half of the time."""
    tokens: list[int] = []
    while len(tokens) < most:
        assert constraint.error is None
        if constraint.is_complete:
            return tokens, True
        allowed = np.flatnonzero(constraint.allowed(eos))
        ends = np.intersect1d(allowed, eos)
        if ends.size and rng.random() < 0.5:
            return tokens, True
        token = int(rng.choice(np.setdiff1d(allowed, eos)))
        tokens.append(token)
        constraint.advance(token)
    return tokens, False


def prompts(name: str) -> list[list[int]]:
    """Nothing, text, half a character, and text before a control token."""
    text = TOKENIZERS[name].encode("user hi", add_special_tokens=False)
    half = TOKENIZERS[name].encode("世", add_special_tokens=False)[:-1]
    return [[], text, [*text, *half], [*text, END[name]]]
