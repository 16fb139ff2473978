"""The parts of a generated message, and the message that they make together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class Content:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that is complete and valid. arguments: text of a JSON object, as in OpenAI's API."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Unparsed:
    """A note that something like a tool call stayed text. Its text, as generated, comes as Content.

    reason: one line, with what was there and why it is no call.
    """

    reason: str


Piece = Reasoning | Content | ToolCall | Unparsed


@dataclass(frozen=True)
class ParsedMessage:
    """A message of an assistant. content, reasoning: None where there is none; notes: why text is no call."""

    content: str | None
    reasoning: str | None
    tool_calls: tuple[ToolCall, ...]
    notes: tuple[str, ...]

    @classmethod
    def of_pieces(cls, pieces: list[Piece]) -> ParsedMessage:
        return cls(
            content="".join(piece.text for piece in pieces if isinstance(piece, Content)) or None,
            reasoning="".join(piece.text for piece in pieces if isinstance(piece, Reasoning)) or None,
            tool_calls=tuple(piece for piece in pieces if isinstance(piece, ToolCall)),
            notes=tuple(piece.reason for piece in pieces if isinstance(piece, Unparsed)),
        )
