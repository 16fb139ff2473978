"""Drafts for the sequences that decode speculatively, made before a step is scheduled."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Items
from typing import Protocol

from mindbatch.decoding import Draft, Row
from mindbatch.decoding.prompt_lookup import propose as look_up
from mindbatch.engine.sequence import Sequence, SequenceGroup


class Assistant(Protocol):
    """A smaller model that guesses tokens."""

    def propose(self, rows: Items[Row], counts: Items[int]) -> list[Draft | None]:
        """For each row, as many tokens as are asked for, or None where it cannot guess."""
        ...

    def forget(self, row: Row) -> None:
        """The row is not asked for again, or not soon."""
        ...


def draft(groups: Iterable[SequenceGroup], assistant: Assistant | None) -> None:
    """Gives a draft to each sequence that asks for one and has none.

    What a row is given depends on the row alone. A draft stays until it is verified, through a pre-emption
    too, and leaves room for the token that follows it.
    """
    asked: list[tuple[Row, int]] = []
    for group in groups:
        params = group.request.params
        if params.num_draft_tokens and group.has_output and group.is_decoding:
            for sequence in group.sequences:
                count = min(params.num_draft_tokens, group.max_tokens - len(sequence) - 1)
                if count > 0 and sequence.row.draft is None:
                    try:
                        _draft(sequence, count, asked)
                    except Exception as error:
                        group.fail(error)
    if asked:
        assert assistant is not None
        rows, counts = zip(*asked, strict=True)
        for row, drafted in zip(rows, assistant.propose(rows, counts), strict=True):
            row.draft = drafted


def _draft(sequence: Sequence, count: int, asked: list[tuple[Row, int]]) -> None:
    """Looks a draft up in the row, or puts the row down for the assistant."""
    row = sequence.row
    if row.params.prompt_lookup_num_tokens:
        row.draft = look_up(row, count)
    else:
        asked.append((row, count))
