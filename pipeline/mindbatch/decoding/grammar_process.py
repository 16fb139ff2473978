"""Owns trying grammars out, in a child process with limits."""

from __future__ import annotations

import json
from importlib.util import find_spec

from mindbatch.children import AnsweringProcess, ChildDied, Limits, ProcessorTimeUsedUp
from mindbatch.decoding import grammar_worker

DEFAULT_LIMITS = Limits(seconds=10.0, memory_bytes=1 << 30)
_MOST_ANSWER_BYTES = 1 << 20


class GrammarProcess:
    """Says what is wrong with grammars; safe to use from several threads and after a fork."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._process = AnsweringProcess(grammar_worker.main, limits)

    def fault(self, grammar: str) -> str | None:
        """Why no row can follow the grammar, or None."""
        if find_spec("llguidance") is None:
            return "constrained output needs the package llguidance, which is not installed"
        try:
            answer: str | None = self._process.ask(json.dumps(grammar).encode(), _MOST_ANSWER_BYTES)
        except ProcessorTimeUsedUp:
            return f"compiling it takes more than {self._limits.seconds:g} s of processor time"
        except ChildDied as error:
            return f"compiling it failed: {error}"
        return answer

    def close(self) -> None:
        """Ends the child; the next grammar starts a new one."""
        self._process.close()
