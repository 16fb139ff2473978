"""What a request that is computed again after its replica died has shown already is not shown twice."""

from __future__ import annotations

from dataclasses import replace

from mindbatch.engine.request import StreamEvent


class ShownEvents:
    """The events of one request. Computed again it gets the same tokens, whatever the batch."""

    def __init__(self) -> None:
        self._shown: dict[int, tuple[int, int]] = {}  # tokens and characters, by sample
        self._reached: dict[int, tuple[int, int]] = {}  # by the present attempt

    def begin_again(self) -> None:
        """The next events are again the first ones."""
        self._reached.clear()

    def rest_of(self, event: StreamEvent) -> StreamEvent | None:
        """The part of an event that was not shown before; None if it all was."""
        tokens, chars = self._reached.get(event.index, (0, 0))
        shown_tokens, shown_chars = self._shown.get(event.index, (0, 0))
        reached = tokens + len(event.token_ids), chars + len(event.text)
        self._reached[event.index] = reached
        self._shown[event.index] = max(reached[0], shown_tokens), max(reached[1], shown_chars)
        if not shown_tokens:
            return event
        rest = replace(
            event,
            token_ids=event.token_ids[max(0, shown_tokens - tokens) :],
            text=event.text[max(0, shown_chars - chars) :],
        )
        return rest if rest.token_ids or rest.text or rest.finish_reason else None
