"""Constraints that hold behind a model's reasoning: an open one, or one that the output may begin with."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.grammar_constraint import Constraint, GrammarConstraint


class ClosingTag:
    """A tag, and which tokens of a vocabulary write the end of it.

    texts: V byte strings, of every token the bytes that it adds to a text; a control token's are its name.
    """

    def __init__(self, tag: str, texts: Sequence[bytes]) -> None:
        self._tag = tag.encode()
        self._texts = texts
        self._crossing: dict[int, NDArray[np.int64]] = {}

    @property
    def num_tokens(self) -> int:
        return len(self._texts)

    def after(self, tail: bytes, token_id: int) -> bytes | None:
        """Returns the last bytes of a text that goes on with a token, as many as a part of the tag can have;
        None once the tag is written."""
        text = tail + self._texts[token_id] if token_id < len(self._texts) else tail
        return None if self._tag in text else text[max(0, len(text) - len(self._tag) + 1) :]

    def crossing(self, tail: bytes) -> NDArray[np.int64]:
        """Returns the tokens that cross the end of the tag: they end it, and add more than white space behind
        it."""
        begun = [size for size in range(1, len(self._tag)) if tail.endswith(self._tag[:size])]
        tokens: NDArray[np.int64] = np.concatenate([self._crossing_after(size) for size in (0, *begun)])
        return tokens

    def _crossing_after(self, size: int) -> NDArray[np.int64]:
        """Finds these tokens for a text that ends with the tag's first `size` bytes."""
        if size not in self._crossing:
            rest = self._tag[size:]
            tokens = [token for token, text in enumerate(self._texts) if self._crosses(text, rest)]
            self._crossing[size] = np.array(tokens, dtype=np.int64)
        return self._crossing[size]

    def _crosses(self, text: bytes, rest: bytes) -> bool:
        before, end, behind = text.partition(rest)
        return bool(end and behind.strip()) and (not before or rest == self._tag)


class DeferredConstraint:
    """Allows all tokens until the tag is written, and from there on what the constraint allows.

    Nothing of the text up to the tag counts for the constraint, nor white space that its last token adds.
    """

    def __init__(self, constraint: GrammarConstraint, tag: ClosingTag) -> None:
        self._constraint, self._tag = constraint, tag
        self._tail: bytes | None = b""
        """Last bytes of the output while it has no tag."""

    def allowed(self, eos_token_ids: tuple[int, ...]) -> NDArray[np.bool_] | None:
        if self._tail is None:
            return self._constraint.allowed(eos_token_ids)
        crossing = self._tag.crossing(self._tail)
        if not crossing.size:
            return None
        mask = np.ones(self._tag.num_tokens, dtype=np.bool_)
        mask[crossing] = False
        return mask

    @property
    def is_complete(self) -> bool:
        return self._tail is None and self._constraint.is_complete

    @property
    def error(self) -> str | None:
        return self._constraint.error if self._tail is None else None

    def advance(self, token_id: int) -> None:
        if self._tail is None:
            self._constraint.advance(token_id)
            return
        self._tail = self._tag.after(self._tail, token_id)
        if self._tail is None:
            self._constraint = self._constraint.fork()  # until now it was shared with all forks

    def fork(self) -> DeferredConstraint:
        forked = copy(self)
        if self._tail is None:
            forked._constraint = self._constraint.fork()
        return forked


class OptionalReasoning:
    """Allows the token that opens a reasoning as the first, and behind that reasoning or without it what the
    constraint allows.

    constraint, behind: the same one at the beginning of the output, and behind the reasoning.
    """

    def __init__(self, constraint: GrammarConstraint, behind: DeferredConstraint, opening: int) -> None:
        self._constraint, self._behind, self._opening = constraint, behind, opening
        self._chosen: Constraint | None = None
        """Constraint of the tokens to come, once the first one is there."""

    def allowed(self, eos_token_ids: tuple[int, ...]) -> NDArray[np.bool_] | None:
        if self._chosen is not None:
            return self._chosen.allowed(eos_token_ids)
        mask = self._constraint.allowed(eos_token_ids).copy()
        mask[self._opening] = True
        return mask

    @property
    def is_complete(self) -> bool:
        return (self._chosen or self._constraint).is_complete

    @property
    def error(self) -> str | None:
        return (self._chosen or self._constraint).error

    def advance(self, token_id: int) -> None:
        if self._chosen is None:
            is_reasoning = token_id == self._opening
            self._chosen = self._behind if is_reasoning else self._constraint
            self._chosen = self._chosen.fork()  # until now both were shared with all forks
            if is_reasoning:
                return
        self._chosen.advance(token_id)

    def fork(self) -> OptionalReasoning:
        forked = copy(self)
        forked._chosen = self._chosen and self._chosen.fork()
        return forked
