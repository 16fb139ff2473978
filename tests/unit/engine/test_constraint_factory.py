"""What the factory of constraints refuses, keeps and shares."""

import numpy as np
import pytest
from constrained import (
    TOKENIZERS,
    wrap,
)
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from mindbatch.decoding import DecodingParams, grammar_constraint
from mindbatch.decoding.grammar_constraint import CompiledGrammar
from mindbatch.engine import constraints
from mindbatch.engine.constraints import ConstraintFactory
from mindbatch.io.errors import PromptError


def test_without_a_tokenizer_no_text_can_be_asked_for() -> None:
    factory = ConstraintFactory(None, 100)
    assert factory.make(DecodingParams()) is None
    with pytest.raises(PromptError, match="decoding.regex needs the model's tokenizer"):
        factory.make(DecodingParams(regex="a"))
    with pytest.raises(PromptError, match="decoding.json_schema needs the model's tokenizer"):
        factory.make(DecodingParams(json_schema={}))


def test_a_tokenizer_whose_tokens_depend_on_their_neighbours_is_refused() -> None:
    words = ["a", "b", "a</w>", "b</w>"]
    backend = Backend(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    backend.decoder = decoders.BPEDecoder(suffix="</w>")
    with pytest.raises(PromptError, match="depends on the token before it"):
        ConstraintFactory(wrap(backend), 4).make(DecodingParams(regex="a"))


def test_a_grammar_is_compiled_once_and_only_so_many_bytes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    compiled = CompiledGrammar.compiled
    monkeypatch.setattr(
        CompiledGrammar, "compiled", lambda self: made.append(self.grammar.source) or compiled(self)
    )
    monkeypatch.setattr(constraints, "_kept_bytes", lambda grammar: constraints._MOST_KEPT_BYTES // 2)
    factory = ConstraintFactory(TOKENIZERS["byte_level"], 400)
    for pattern in ("a", "a", "b", "a", "c", "a", "b"):
        factory.make(DecodingParams(regex=pattern))
    assert made == ["a", "b", "c", "b"]


def test_many_rows_of_a_grammar_start_it_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_constraint, "_ROWS_TOGETHER", 3)
    renewals: list[None] = []
    renew = CompiledGrammar.renew
    monkeypatch.setattr(CompiledGrammar, "renew", lambda self: renewals.append(None) or renew(self))
    factory = ConstraintFactory(TOKENIZERS["byte_level"], 400)
    for _ in range(7):
        factory.make(DecodingParams(regex="a"))
    assert len(renewals) == 2


def test_rows_that_share_a_grammar_do_not_use_up_each_others_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_constraint, "_MOST_LEXER_STATES", 80)
    factory = ConstraintFactory(TOKENIZERS["byte_level"], TOKENIZERS["byte_level"].vocab_size)
    params = DecodingParams(regex="[ab]*a[ab]{7}c")
    rng = np.random.default_rng(6)
    renewals: list[None] = []
    renew = CompiledGrammar.renew
    monkeypatch.setattr(CompiledGrammar, "renew", lambda self: renewals.append(None) or renew(self))
    for _ in range(12):
        constraint = factory.make(params)
        assert constraint is not None
        for _ in range(12):
            assert constraint.fault is None
            allowed = np.flatnonzero(constraint.allowed(()))
            assert allowed.size
            constraint.advance(int(rng.choice(allowed)))
            if constraint.is_complete:
                break
    assert renewals
    assert len(renewals) < 40


def test_a_row_that_uses_up_its_room_alone_is_at_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_constraint, "_MOST_LEXER_STATES", 8)
    factory = ConstraintFactory(TOKENIZERS["byte_level"], TOKENIZERS["byte_level"].vocab_size)
    with pytest.raises(PromptError, match="cannot go on after 0 tokens: lexer error"):
        factory.make(DecodingParams(regex="[ab]*a[ab]{7}c"))
