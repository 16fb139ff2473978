"""Grammars of regular expressions and JSON schemas: translated for the library (llguidance), and tried out.

The library compiles them in a child process with limits, before a model is there: some short schemas take it
many seconds and gigabytes.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple

from mindbatch.decoding import grammar_worker
from mindbatch.decoding.python_regex import translated
from mindbatch.io.children import AnsweringProcess, ChildDied, Limits, ProcessorTimeUsedUp
from mindbatch.io.error_lines import shown, shown_parameter
from mindbatch.io.strict_json import StrictReader, value_errors

MAX_CHARACTERS = 1 << 16
"""Most characters of a schema's text."""
MAX_NESTING = 100
"""Levels of objects and arrays in a schema."""
_READER = StrictReader()


def canonical_schema(value: object) -> str:
    """Returns the compact JSON text of a schema that is given as text, as a mapping, or as true or false.

    The order of keys stays: properties are generated in the schema's order. The text of a text is itself, so
    that normalising twice changes nothing.

    Raises:
        ValueError: the reason, as words that follow "decoding.json_schema=...: ".
    """
    if isinstance(value, str):
        if len(value) > MAX_CHARACTERS:
            raise ValueError(f"has {len(value)} characters; at most {MAX_CHARACTERS} are allowed")
        value = _READER.parse(value)
    if not isinstance(value, Mapping | bool):
        raise ValueError(f"found {shown(value)}; a JSON schema is an object, or true or false")
    if errors := value_errors(value, "schema", MAX_NESTING):
        raise ValueError(errors[0])
    # What JSON has no type for is a mapping of another class now.
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=dict)
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"has {len(text)} characters; at most {MAX_CHARACTERS} are allowed")
    return text


_REASON_CHARACTERS = 300


GrammarKind = Literal["regex", "json_schema"]
"""The parameter that a grammar is given as."""


@dataclass(frozen=True)
class Grammar:
    """A regular expression or schema: `source`, of the parameter `kind`."""

    kind: GrammarKind
    source: str

    @property
    def name(self) -> str:
        """Constraint as the user wrote it, for error lines."""
        return shown_parameter(self.kind, self.source)


def grammar_of(regex: str | None, json_schema: str | None) -> Grammar | None:
    """Returns the grammar of a row's parameters, or None."""
    if regex is not None:
        return Grammar("regex", regex)
    return None if json_schema is None else Grammar("json_schema", json_schema)


def refuse_unreadable(kind: GrammarKind, source: str) -> None:
    """ValueError, in one line, for what is no regular expression or no schema; nothing is compiled."""
    try:
        if kind == "regex":
            translated(source)
        elif canonical_schema(source) == "false":
            raise ValueError(grammar_worker.NO_TEXT)
    except ValueError as error:
        raise ValueError(_one_line(str(error))) from error


def plain_reason(message: str) -> str:
    """Returns the library's message in one line, without the line of our grammar and an excerpt of it."""
    reason = re.split(r"\n\s*\d+ \| |\n<", message)[0]
    return _one_line(re.sub(r"^at \d+\(\d+\): |(?m:^ *\^+\n)", "", reason))


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _REASON_CHARACTERS else line[:_REASON_CHARACTERS] + "..."


DEFAULT_LIMITS = Limits(seconds=2.0, memory_bytes=320 << 20)
"""Grammars of use take milliseconds and a few MiB. A sound one is compiled again beside the model, where
nothing else bounds it."""
_MAX_ANSWER_BYTES = 1 << 20
_KEPT_TRIALS = 1024
_MAX_KEPT_CHARACTERS = 32 << 20


class GrammarCheck(NamedTuple):
    """Result of compiling a grammar: the reason no row can follow it, or None; the library's text for it, and
    the bytes that it takes."""

    error: str | None
    text: str = ""
    nbytes: int = 0


class GrammarProcess:
    """Says what is wrong with grammars; safe to use from several threads and after a fork."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._process = AnsweringProcess(grammar_worker.main, limits)

    def tried(self, grammar: Grammar) -> GrammarCheck:
        if find_spec("llguidance") is None:
            return GrammarCheck("constrained output needs the package llguidance, which is not installed")
        try:
            text = grammar_worker.OPTIONS + self._text(grammar)
            error, nbytes = self._ask("try", text)
        except ValueError as refused:
            return GrammarCheck(str(refused))
        return GrammarCheck(error, text, nbytes)

    def close(self) -> None:
        """Ends the child; the next grammar starts a new one."""
        self._process.close()

    def _text(self, grammar: Grammar) -> str:
        if grammar.kind == "regex":
            return f"start: /{translated(grammar.source)}/"
        from mindbatch.decoding.json_schema.compiler import compiled_schema  # few rows have a schema

        schema = json.loads(canonical_schema(grammar.source))
        return compiled_schema(schema, self._search, self._empty_of)

    def _search(self, patterns: Sequence[str], names: Sequence[str]) -> list[list[str]]:
        """Returns the patterns that are found in each name. Raises ValueError: they take too long."""
        by_name: list[list[str]] = self._ask("search", [patterns, names])
        return by_name

    def _empty_of(self, terminals: Sequence[str]) -> list[str]:
        """Those of some terminals that no text matches. Raises ValueError: one is too costly to tell."""
        errors = self._ask("errors", terminals)
        if error := next((e for e in errors if e not in (None, grammar_worker.NO_TEXT)), None):
            raise ValueError(error)
        return [terminal for terminal, error in zip(terminals, errors, strict=True) if error]

    def _ask(self, question: str, subject: Any) -> Any:
        """Returns the child's answer. Raises ValueError: it took too much."""
        request = json.dumps([question, subject])
        try:
            return self._process.ask(request.encode(), _MAX_ANSWER_BYTES)
        except ProcessorTimeUsedUp as error:
            seconds = self._limits.seconds
            raise ValueError(f"compiling it takes more than {seconds:g} s of processor time") from error
        except ChildDied as error:
            raise ValueError(f"compiling it failed: {error}") from error


_process = GrammarProcess()
_trials: dict[Grammar, GrammarCheck] = {}


def constraint_error(regex: str | None, json_schema: str | None) -> str | None:
    """Returns the error in a row's constraint, in one line, or None; it needs no model and no tokenizer."""
    grammar = grammar_of(regex, json_schema)
    return None if grammar is None else tried(grammar).error


def tried(grammar: Grammar) -> GrammarCheck:
    """Compiles the grammar on trial, once; an error names what the user wrote."""
    if grammar not in _trials:
        trial = _process.tried(grammar)
        if trial.error is not None:
            trial = GrammarCheck(f"{grammar.name}: {plain_reason(trial.error)}")
        num_characters = sum(len(other.text) for other in _trials.values())
        if len(_trials) == _KEPT_TRIALS or num_characters > _MAX_KEPT_CHARACTERS:
            _trials.clear()
        _trials[grammar] = trial
    return _trials[grammar]
