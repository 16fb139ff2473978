"""Tries grammars out: the library compiles them in a child process with limits, before a model is there.

Some short schemas take it many seconds and gigabytes.
"""

import json
from hashlib import blake2b
from importlib.util import find_spec
from typing import NamedTuple

from mindbatch.decoding import grammar_worker
from mindbatch.decoding.grammar import Grammar, grammar_of, plain_reason
from mindbatch.io.children import AnsweringProcess, ChildDied, Limits, ProcessorTimeUsedUp

DEFAULT_LIMITS = Limits(seconds=2.0, memory_bytes=320 << 20)
"""Grammars of use take milliseconds and a few MiB. A sound one is compiled again beside the model, where
nothing else bounds it."""
_MOST_ANSWER_BYTES = 1 << 20
_KEPT_TRIALS = 1024


class GrammarCheck(NamedTuple):
    """Result of compiling a grammar: the reason no row can follow it, or None, and the bytes it takes."""

    fault: str | None
    nbytes: int = 0


class GrammarProcess:
    """Says what is wrong with grammars; safe to use from several threads and after a fork."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._process = AnsweringProcess(grammar_worker.main, limits)

    def tried(self, grammar: str) -> GrammarCheck:
        if find_spec("llguidance") is None:
            return GrammarCheck("constrained output needs the package llguidance, which is not installed")
        try:
            return GrammarCheck(*self._process.ask(json.dumps(grammar).encode(), _MOST_ANSWER_BYTES))
        except ProcessorTimeUsedUp:
            return GrammarCheck(f"compiling it takes more than {self._limits.seconds:g} s of processor time")
        except ChildDied as error:
            return GrammarCheck(f"compiling it failed: {error}")

    def close(self) -> None:
        """Ends the child; the next grammar starts a new one."""
        self._process.close()


_process = GrammarProcess()
_trials: dict[bytes, GrammarCheck] = {}
"""By the digest of a grammar's text, which may be long."""


def constraint_fault(regex: str | None, json_schema: str | None) -> str | None:
    """Error in a row's constraint, in one line, or None; it needs no model and no tokenizer."""
    try:
        grammar = grammar_of(regex, json_schema)
    except ValueError as error:
        return str(error)
    return None if grammar is None else tried(grammar).fault


def tried(grammar: Grammar) -> GrammarCheck:
    """Compiles the grammar on trial, once; an error names what the user wrote."""
    digest = blake2b(grammar.text.encode(), digest_size=16).digest()
    if digest not in _trials:
        trial = _process.tried(grammar.text)
        if trial.fault is not None:
            trial = trial._replace(fault=f"{grammar.name}: {plain_reason(trial.fault)}")
        if len(_trials) == _KEPT_TRIALS:
            _trials.clear()
        _trials[digest] = trial
    return _trials[digest]
