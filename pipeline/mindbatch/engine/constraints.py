"""The constraints of rows for one model: grammars compiled over the bytes of its vocabulary."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mindbatch.decoding.params import DecodingParams
from mindbatch.io.errors import PromptError
from mindbatch.prompts.token_bytes import last_text_token
from mindbatch.prompts.tokenizer import Tokenizer

if TYPE_CHECKING:
    from mindbatch.decoding.deferred_constraint import ClosingTag, DeferredConstraint
    from mindbatch.decoding.grammar import Grammar
    from mindbatch.decoding.grammar_constraint import (
        CompiledGrammar,
        Constraint,
        GrammarConstraint,
        Vocabulary,
    )

_MAX_KEPT_BYTES = 256 << 20
"""Maximum bytes of the compiled grammars that are kept."""
_USED_BYTES = 4 << 20
"""Bytes that a grammar of common size takes while it is followed, beyond those of its compiled form."""
_PROBES = 32


class ConstraintFactory:
    """Makes the constraints of rows for a loaded model; loads the library at the first row that needs it.

    tokenizer: None if the model has no tokenizer.
    vocab_size: vocabulary of the model, which may be larger than the tokenizer's.
    """

    def __init__(self, tokenizer: Tokenizer | None, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._vocabulary: Vocabulary | None = None
        self._compiled: OrderedDict[Grammar, CompiledGrammar] = OrderedDict()
        self._tags: dict[str, ClosingTag] = {}

    def make(self, params: DecodingParams, prompt_token_ids: Sequence[int] = ()) -> Constraint | None:
        """Makes the constraint of a row that continues this prompt; None if its parameters have none.

        Where the prompt ends within reasoning, the constraint applies after the closing tag. Otherwise the
        output may begin with reasoning if the opening tag is one token.

        Raises:
            PromptError: the constraint cannot be compiled, no output of this model can fulfil it, or there is
                no tokenizer for the text of tokens.
        """
        if params.regex is None and params.json_schema is None:
            return None
        if self._tokenizer is None:
            name = "regex" if params.regex is not None else "json_schema"
            raise PromptError(f"decoding.{name} needs the model's tokenizer, and its folder has none")
        from mindbatch.decoding.grammar import (
            grammar_of,  # few rows have a grammar
            tried,
        )
        from mindbatch.decoding.grammar_constraint import GrammarConstraint

        grammar = grammar_of(params.regex, params.json_schema)
        assert grammar is not None
        if grammar not in self._compiled and (reason := tried(grammar).error):
            raise PromptError(reason)
        opening, closing = params.reasoning_tags or ("", "")
        compiled = self._grammar(grammar, self._tokenizer)
        end = self._tokenizer.end_of(prompt_token_ids).rstrip() if opening else ""
        if opening and end.endswith(opening):
            behind = _checked(GrammarConstraint(compiled, first=False))
            return self._behind(closing, behind, self._tokenizer)
        first = last_text_token(self._tokenizer, prompt_token_ids) is None
        constraint = _checked(GrammarConstraint(compiled, first=first))
        token = None if not opening or end.endswith(closing) else _only_token(self._tokenizer, opening)
        if token is None or token >= self._vocab_size:
            return constraint
        from mindbatch.decoding.deferred_constraint import OptionalReasoning

        behind = GrammarConstraint(compiled, first=False)
        return OptionalReasoning(constraint, self._behind(closing, behind, self._tokenizer), token)

    def _behind(
        self, closing: str, constraint: GrammarConstraint, tokenizer: Tokenizer
    ) -> DeferredConstraint:
        from mindbatch.decoding.deferred_constraint import ClosingTag, DeferredConstraint

        if closing not in self._tags:
            self._tags = {closing: ClosingTag(closing, _texts(tokenizer, self._vocab_size))}
        return DeferredConstraint(constraint, self._tags[closing])

    def _grammar(self, grammar: Grammar, tokenizer: Tokenizer) -> CompiledGrammar:
        """Compiles a grammar, unless it is kept from an earlier row."""
        from mindbatch.decoding.grammar import tried
        from mindbatch.decoding.grammar_constraint import CompiledGrammar

        if self._vocabulary is None:
            self._vocabulary = vocabulary_of(tokenizer, self._vocab_size)
        if grammar not in self._compiled:
            self._compiled[grammar] = CompiledGrammar(grammar, tried(grammar).text, self._vocabulary)
        self._compiled.move_to_end(grammar)
        while len(self._compiled) > 1 and sum(map(_kept_bytes, self._compiled)) > _MAX_KEPT_BYTES:
            self._compiled.popitem(last=False)
        return self._compiled[grammar]


def _checked(constraint: GrammarConstraint) -> GrammarConstraint:
    """Returns the constraint. Raises PromptError if no output can fulfil it."""
    if constraint.error is not None:
        raise PromptError(constraint.error)
    return constraint


def _only_token(tokenizer: Tokenizer, text: str) -> int | None:
    """Returns the token of a text, or None if the text has several."""
    tokens = tokenizer.encode(text, add_special_tokens=False, allow_special=True)
    return tokens[0] if len(tokens) == 1 else None


def _kept_bytes(grammar: Grammar) -> int:
    from mindbatch.decoding.grammar import tried

    return tried(grammar).nbytes + _USED_BYTES


def _texts(tokenizer: Tokenizer, vocab_size: int) -> list[bytes]:
    """Returns the bytes that each token id adds within a text, control tokens too; empty without a token."""
    anchor = next((token for token in range(vocab_size) if _text(tokenizer, token, None)), None)
    return [tokenizer.token_bytes(token, anchor) or b"" for token in range(vocab_size)]


def vocabulary_of(tokenizer: Tokenizer, vocab_size: int) -> Vocabulary:
    """Returns the bytes that each token id below `vocab_size` adds, as an output's first token and elsewhere.

    Empty for control tokens and ids without a token.

    Raises:
        PromptError: the tokenizer's tokens have no texts of their own: they change with the token before.
    """
    from mindbatch.decoding.grammar_constraint import Vocabulary

    first = [_text(tokenizer, token, None) for token in range(vocab_size)]
    anchor = next((token for token, text in enumerate(first) if text), None)
    later = [_text(tokenizer, token, anchor) for token in range(vocab_size)]
    _check(tokenizer, later)
    return Vocabulary(first, later)


def _text(tokenizer: Tokenizer, token_id: int, previous: int | None) -> bytes:
    if token_id in tokenizer.special_ids:
        return b""
    return tokenizer.token_bytes(token_id, previous) or b""


def _check(tokenizer: Tokenizer, later: list[bytes]) -> None:
    """Tries some tokens after some others: word-end marks and repeats that count once show up at once."""
    shown = [token for token, text in enumerate(later) if text]
    probes = shown[:: max(1, len(shown) // _PROBES)]
    for previous in probes:
        for token in probes:
            if _text(tokenizer, token, previous) != later[token]:
                raise PromptError(
                    "decoding.regex and decoding.json_schema cannot be used with this model's tokenizer: "
                    f"what its token {token} adds to a text depends on the token before it"
                )
