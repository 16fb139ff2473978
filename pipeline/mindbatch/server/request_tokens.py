"""Tokens of the request that is being answered, for its line in the log: counted where they come about."""

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
    """Counts anew, for the request of this task and of those that it starts."""
    tokens = RequestTokens()
    _counted.set(tokens)
    return tokens


def counted() -> RequestTokens:
    """The counts of this task's request; of nobody's where it is none."""
    return _counted.get(RequestTokens())
