"""GrammarConstraint: a row that follows a regular expression or a schema."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.grammar import Grammar, plain_reason
from mindbatch.decoding.grammar_worker import LibraryVocabulary

if TYPE_CHECKING:
    import llguidance


class Vocabulary:
    """Token ids 0 to V - 1 and what each adds to the output, where it comes first and elsewhere.

    first, later: V byte strings each; an empty one is a token that no output may hold (control tokens, ids
        without a token). Where the two differ (sentencepiece drops a first word's space), the library gets
        one more entry for the first form, unless another token has those bytes anyway.
    """

    def __init__(self, first: Sequence[bytes], later: Sequence[bytes]) -> None:
        import llguidance

        self.size = len(later)
        entries = list(later)
        self._silent = len(entries)  # what the library never allows: tokens that add nothing where they stand
        entries.append(b"")
        entry_of = {b"": self._silent}
        for token, text in enumerate(later):
            entry_of.setdefault(text, token)
        self._first_entry = np.arange(self.size)
        for token, text in enumerate(first):
            if text != later[token]:
                self._first_entry[token] = entry_of.setdefault(text, len(entries))
                if entry_of[text] == len(entries):
                    entries.append(text)
        self._has_text = np.fromiter(map(bool, later), dtype=np.bool_, count=self.size)
        self._end = len(entries)
        self.tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(LibraryVocabulary(entries)))

    def shows_text(self, token_id: int) -> bool:
        """False for control tokens and ids that have no token."""
        return 0 <= token_id < self.size and bool(self._has_text[token_id])

    def entry(self, token_id: int, *, first: bool) -> int | None:
        """Returns the library's id of a token that shows text; None if it adds nothing to an empty output."""
        entry = int(self._first_entry[token_id]) if first else token_id
        return None if entry == self._silent else entry

    def allowed(self, matcher: llguidance.LLMatcher, *, first: bool) -> NDArray[np.bool_]:
        """Mask [V] of the tokens that may follow, end tokens left out; none if the matcher has failed.

        A token that adds nothing to an empty output may come first if any other may come after it: the lone
        space of sentencepiece, which models write before a digit or before a space that is to be seen.
        """
        bits = np.zeros(self._end // 32 + 1, dtype=np.int32)
        matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        if matcher.is_error():
            return np.zeros(self.size, dtype=np.bool_)
        entries = np.unpackbits(bits.view(np.uint8), count=self._end, bitorder="little").view(np.bool_)
        tokens: NDArray[np.bool_] = entries[: self.size]
        if first:
            entries[self._silent] = tokens.any()
            tokens = entries[self._first_entry]
        return tokens


_ROWS_TOGETHER = 256
"""Copies of a matcher share what the library computes and never gives back: after so many it starts anew."""
_MAX_LEXER_STATES = 50_000
"""Most lexer states of the copies of one matcher together; about 2 kB each."""


class CompiledGrammar:
    """A grammar over one vocabulary: rows get copies of its matcher, which share what the library finds.

    text: the library's, of the grammar's trial.
    """

    def __init__(self, grammar: Grammar, text: str, vocabulary: Vocabulary) -> None:
        self.grammar = grammar
        self._text = text
        self.vocabulary = vocabulary
        self._copies = 0
        self._matcher = self.compiled()

    def compiled(self) -> llguidance.LLMatcher:
        """Returns a matcher that shares nothing with any other. It never raises: a failure is its state."""
        import llguidance

        # Eager work over the whole vocabulary saves no measurable time later, and has no bound.
        limits = llguidance.LLParserLimits(
            max_lexer_states=_MAX_LEXER_STATES, precompute_large_lexemes=False, verbose_errors=False
        )
        return llguidance.LLMatcher(self.vocabulary.tokenizer, self._text, log_level=0, limits=limits)

    def matcher(self) -> llguidance.LLMatcher:
        """Returns a copy at the beginning."""
        if self._copies == _ROWS_TOGETHER:
            self.renew()
        self._copies += 1
        return self._matcher.deep_copy()

    def renew(self) -> None:
        """Rows to come share nothing with those before."""
        self._copies = 0
        self._matcher = self.compiled()


class Constraint(Protocol):
    """Limit on the output of one row, which advances it by each token that it gets."""

    def allowed(self, eos_token_ids: tuple[int, ...]) -> NDArray[np.bool_] | None:
        """Mask [V] of tokens that may follow, not to be changed; has end tokens where the output may end.

        No token is allowed when it is complete and there are no end tokens, and when it has an error. None
        allows all tokens.
        """

    @property
    def is_complete(self) -> bool:
        """True if the output fulfils it and no text can be added."""

    @property
    def error(self) -> str | None:
        """Error of the row, in one line: no token fits, or its grammar takes too much to follow."""

    def advance(self, token_id: int) -> None:
        """The row goes on with an allowed token; one without text, as end tokens are, changes nothing."""

    def fork(self) -> Constraint: ...


class GrammarConstraint:
    """A grammar that the text of an output must follow; see `Constraint`.

    first: whether the output begins a text of its own, so that its first token takes its first form.
    """

    def __init__(self, compiled: CompiledGrammar, *, first: bool) -> None:
        self._compiled = compiled
        self._begins_text = first
        self._matcher = compiled.matcher()
        self._token_ids: list[int] = []
        self._mask: NDArray[np.bool_] | None = None
        self._error: str | None = None

    def allowed(self, eos_token_ids: tuple[int, ...]) -> NDArray[np.bool_]:
        mask = self._next()
        if self._error is not None or not eos_token_ids:
            return mask
        ends = {token: self._may_end_with(token) for token in eos_token_ids if token < mask.size}
        if any(mask[token] != may_end for token, may_end in ends.items()):
            mask = mask.copy()
            mask[list(ends)] = list(ends.values())
        return mask

    @property
    def is_complete(self) -> bool:
        return self.error is None and self._matcher.is_accepting() and not self._next().any()

    @property
    def error(self) -> str | None:
        self._next()
        return self._error

    def advance(self, token_id: int) -> None:
        if not self._compiled.vocabulary.shows_text(token_id) or self._error is not None:
            return
        entry = self._compiled.vocabulary.entry(token_id, first=self._is_first)
        self._token_ids.append(token_id)
        self._mask = None
        if entry is not None and not self._matcher.consume_token(entry):
            self._retry()

    def fork(self) -> GrammarConstraint:
        forked = copy(self)
        forked._matcher = self._matcher.deep_copy()
        forked._token_ids = list(self._token_ids)
        return forked

    def _next(self) -> NDArray[np.bool_]:
        """Mask [V] of the tokens that may add text."""
        if self._error is not None:
            return np.zeros(self._compiled.vocabulary.size, dtype=np.bool_)
        if self._mask is None:
            self._mask = self._computed()
            if self._matcher.is_error() and not self._is_stuck():
                self._retry()
                self._mask = self._computed()
            if self._error is None and not self._mask.any() and not self._matcher.is_accepting():
                self._error = self._reason()
            self._mask.flags.writeable = False
        return self._mask

    @property
    def _is_first(self) -> bool:
        return self._begins_text and not self._token_ids

    def _computed(self) -> NDArray[np.bool_]:
        return self._compiled.vocabulary.allowed(self._matcher, first=self._is_first)

    def _may_end_with(self, token_id: int) -> bool:
        """True if the output may end with this token; one that shows text is itself part of the output."""
        vocabulary = self._compiled.vocabulary
        if not vocabulary.shows_text(token_id):
            return bool(self._matcher.is_accepting())
        if not self._next()[token_id]:
            return False
        entry, trial = vocabulary.entry(token_id, first=self._is_first), self._matcher.deep_copy()
        return bool((entry is None or trial.consume_token(entry)) and trial.is_accepting())

    def _retry(self) -> None:
        """Makes the matcher anew, without the state of other rows of the grammar.

        The library bounds the memory of all copies of a matcher together, and a row's result must not depend
        on other rows.
        """
        self._compiled.renew()
        self._matcher = self._compiled.compiled()
        vocabulary, begins = self._compiled.vocabulary, self._begins_text
        for index, token in enumerate(self._token_ids):
            entry = vocabulary.entry(token, first=begins and not index)
            if entry is not None and not self._matcher.try_consume_tokens([entry]):
                refused = self._described(f"token {token} is not allowed there")
                self._error = self._reason() if self._matcher.is_error() else refused
                return

    def _is_stuck(self) -> bool:
        return "NoExtension" in self._matcher.get_error()

    def _reason(self) -> str:
        if self._is_stuck() or not self._matcher.is_error():
            why = "no token of the model can follow"
        else:
            why = plain_reason(self._matcher.get_error())
        return self._described(why)

    def _described(self, why: str) -> str:
        name, count = self._compiled.grammar.name, len(self._token_ids)
        return f"{name}: the output cannot go on after {count} tokens: {why}"
