"""When a sequence ends: end tokens, stop strings, fulfilled constraints and the length limit."""

from __future__ import annotations

from mindbatch.decoding import FinishReason, Row
from mindbatch.engine.sequence import Sequence, SequenceText


def finish_reason(sequence: Sequence, max_tokens: int) -> FinishReason | None:
    """Why a sequence ends with the token that it has just got, or None."""
    last = sequence.row.output_token_ids[-1]
    return _reason(sequence.row, last, _has_stopped(sequence.text), len(sequence), max_tokens)


def ending(sequence: Sequence, token_id: int, max_tokens: int) -> FinishReason | None:
    """Why a sequence would end with one more token, or None; it is left as it is."""
    text = sequence.text
    if text is not None:
        text = text.fork()
        text.push(token_id)
    row = sequence.row
    if row.constraint is not None and token_id not in row.eos_token_ids:
        row = row.fork()
        assert row.constraint is not None
        row.constraint.advance(token_id)
    reason = _reason(row, token_id, _has_stopped(text), len(sequence) + 1, max_tokens)
    if reason == "length" and text is not None:
        text.flush()  # what was held back may hold a stop string
        return "stop" if text.stop.stopped else reason
    return reason


def _reason(row: Row, last: int, stopped: bool, length: int, max_tokens: int) -> FinishReason | None:
    complete = row.constraint is not None and row.constraint.is_complete
    if stopped or complete or last in row.eos_token_ids:
        return "stop"
    return "length" if length >= max_tokens else None


def _has_stopped(text: SequenceText | None) -> bool:
    return text is not None and text.stop.stopped
