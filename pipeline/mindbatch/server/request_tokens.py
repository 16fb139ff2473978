"""Counts the tokens of the current request for its line in the log."""

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass
class RequestTokens:
    prompt: int = 0
    generated: int = 0

    def __str__(self) -> str:
        if not self.prompt:
            return ""
        return f", {self.prompt} prompt tokens, {self.generated} generated"


_counted: ContextVar[RequestTokens] = ContextVar("request_tokens")


def begin() -> RequestTokens:
    """Starts new counts for the request of this task and the tasks that it starts."""
    tokens = RequestTokens()
    _counted.set(tokens)
    return tokens


def counted() -> RequestTokens:
    """Returns the counts of this task's request; unused ones outside a request."""
    return _counted.get(RequestTokens())
