"""What has been read of a row so far; columns and OpenAI requests are both read into it."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class RowDraft:
    """A row in the making: each part that could be read, and what is wrong with the others.

    decoding: the row's own decoding parameters by their names in DecodingParams, not yet validated.
    shown_as: how the row itself calls each of them, for error lines.
    row_faults, prompt_faults: what is wrong with the row's columns, and with what was found in them.
    """

    key: str | None = None
    content: dict[str, Any] = field(default_factory=dict)
    decoding: dict[str, Any] = field(default_factory=dict)
    shown_as: dict[str, str] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    row_faults: list[str] = field(default_factory=list)
    prompt_faults: list[str] = field(default_factory=list)
