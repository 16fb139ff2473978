"""Owns trying grammars out, in a child process with limits."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import NamedTuple

from mindbatch.children import AnsweringProcess, ChildDied, Limits, ProcessorTimeUsedUp
from mindbatch.decoding import grammar_worker

DEFAULT_LIMITS = Limits(seconds=2.0, memory_bytes=320 << 20)
"""Grammars of use take milliseconds and a few MiB. A sound one is compiled again beside the model, where
nothing else bounds it."""
_MOST_ANSWER_BYTES = 1 << 20


class Trial(NamedTuple):
    """Why no row can follow a grammar, or None, and the bytes that it takes when it is compiled."""

    fault: str | None
    nbytes: int = 0


class GrammarProcess:
    """Says what is wrong with grammars; safe to use from several threads and after a fork."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._process = AnsweringProcess(grammar_worker.main, limits)

    def tried(self, grammar: str) -> Trial:
        """What compiling the grammar comes to."""
        if find_spec("llguidance") is None:
            return Trial("constrained output needs the package llguidance, which is not installed")
        try:
            return Trial(*self._process.ask(json.dumps(grammar).encode(), _MOST_ANSWER_BYTES))
        except ProcessorTimeUsedUp:
            return Trial(f"compiling it takes more than {self._limits.seconds:g} s of processor time")
        except ChildDied as error:
            return Trial(f"compiling it failed: {error}")

    def close(self) -> None:
        """Ends the child; the next grammar starts a new one."""
        self._process.close()
