"""Output of /v1/responses: pieces of a message become items, and the events that tell of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from mindbatch.message_formats.pieces import Content, Piece, Reasoning, ToolCall
from mindbatch.server.records import new_id

Event = dict[str, Any]
_PARTS = {"message": "output_text", "reasoning": "reasoning_text"}


class OutputItems:
    """The items of one response, in the order in which their pieces come."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._numbers = itertools.count()
        self._open: str | None = None

    def event(self, kind: str, **fields: Any) -> Event:
        """An event with its number in the stream."""
        return {"type": f"response.{kind}", "sequence_number": next(self._numbers), **fields}

    def add(self, piece: Piece) -> Iterator[Event]:
        """Takes a piece; yields what it brings about. A note on text that is no call brings nothing."""
        if isinstance(piece, ToolCall):
            yield from self.close()
            yield from self._call(piece)
        elif isinstance(piece, Content | Reasoning) and piece.text:
            kind = "message" if isinstance(piece, Content) else "reasoning"
            if self._open != kind:
                yield from self.close()
                yield from self._begin(kind)
            part = self.items[-1]["content"][0]
            part["text"] += piece.text
            logprobs: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
            yield self.event(f"{_PARTS[kind]}.delta", **self._place(), delta=piece.text, **logprobs)

    def close(self, status: str = "completed") -> Iterator[Event]:
        """Ends the item that text was added to, if there is one."""
        if (kind := self._open) is None:
            return
        self._open = None
        item = self.items[-1]
        part = item["content"][0]
        logprobs: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
        yield self.event(f"{_PARTS[kind]}.done", **self._place(), text=part["text"], **logprobs)
        yield self.event("content_part.done", **self._place(), part=part)
        item["status"] = status
        yield self._item("done")

    def _begin(self, kind: str) -> Iterator[Event]:
        self._open = kind
        prefix = "msg_" if kind == "message" else "rs_"
        own: dict[str, Any] = {"role": "assistant"} if kind == "message" else {"summary": []}
        item: dict[str, Any] = {
            "id": new_id(prefix),
            "type": kind,
            "status": "in_progress",
            "content": [],
            **own,
        }
        self.items.append(item)
        yield self._item("added")
        part: dict[str, Any] = {"type": _PARTS[kind], "text": ""}
        item["content"] = [part | ({"annotations": [], "logprobs": []} if kind == "message" else {})]
        yield self.event("content_part.added", **self._place(), part=item["content"][0])

    def _call(self, call: ToolCall) -> Iterator[Event]:
        item = {
            "id": new_id("fc_"),
            "type": "function_call",
            "status": "in_progress",
            "call_id": new_id("call_"),
            "name": call.name,
            "arguments": "",
        }
        self.items.append(item)
        yield self._item("added")
        place = {"item_id": item["id"], "output_index": len(self.items) - 1}
        yield self.event("function_call_arguments.delta", **place, delta=call.arguments)
        yield self.event("function_call_arguments.done", **place, name=call.name, arguments=call.arguments)
        item |= {"arguments": call.arguments, "status": "completed"}
        yield self._item("done")

    def _item(self, what: str) -> Event:
        return self.event(f"output_item.{what}", output_index=len(self.items) - 1, item=dict(self.items[-1]))

    def _place(self) -> dict[str, Any]:
        return {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1, "content_index": 0}

    def messages(self) -> list[dict[str, Any]]:
        """The items as a message of a conversation that goes on."""
        texts = {
            kind: "".join(item["content"][0]["text"] for item in self.items if item["type"] == kind)
            for kind in _PARTS
        }
        calls = [
            {
                "id": item["call_id"],
                "type": "function",
                "function": {"name": item["name"], "arguments": item["arguments"]},
            }
            for item in self.items
            if item["type"] == "function_call"
        ]
        message: dict[str, Any] = {"role": "assistant", "content": texts["message"]}
        return [message | ({"tool_calls": calls} if calls else {})]
