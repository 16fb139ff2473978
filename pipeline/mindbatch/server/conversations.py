"""Conversations that clients go on with by the name of a response: kept in memory, within bounds."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import orjson

from mindbatch.io.fault_lines import shown
from mindbatch.server.api_errors import ApiError

_MOST_BYTES = 64 << 20


class Conversations:
    """The messages up to each response, the oldest forgotten first."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._messages: OrderedDict[str, bytes] = OrderedDict()
        self._num_bytes, self._most_bytes = 0, most_bytes

    def keep(self, name: str, messages: list[dict[str, Any]]) -> None:
        """Remembers a conversation."""
        content = self._messages[name] = orjson.dumps(messages)
        self._num_bytes += len(content)
        while self._num_bytes > self._most_bytes:
            self._num_bytes -= len(self._messages.popitem(last=False)[1])

    def find(self, name: object) -> list[dict[str, Any]]:
        """The messages up to a response; an ApiError where they are not known."""
        content = self._messages.get(name) if isinstance(name, str) else None
        if content is None:
            message = f"previous_response_id={shown(name)}: not known to this process of the server"
            raise ApiError(404, message, "response_not_found", "previous_response_id")
        messages: list[dict[str, Any]] = orjson.loads(content)
        return messages
