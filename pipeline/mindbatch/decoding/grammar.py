"""Grammars of regular expressions and JSON schemas: translated for the library (llguidance), and tried out.

The library compiles them in a child process with limits, before a model is there: some short schemas take it
many seconds and gigabytes.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from importlib.util import find_spec
from typing import Literal, NamedTuple

from mindbatch.decoding import grammar_worker
from mindbatch.decoding.python_regex import translated
from mindbatch.io.children import AnsweringProcess, ChildDied, Limits, ProcessorTimeUsedUp
from mindbatch.io.error_lines import shown, shown_parameter
from mindbatch.io.strict_json import StrictReader, value_errors

MOST_CHARACTERS = 1 << 16
"""Most characters of a schema's text."""
MOST_NESTING = 100
"""Levels of objects and arrays in a schema."""
_READER = StrictReader()


def canonical_schema(value: object) -> str:
    """The compact JSON text of a schema that is given as text, as a mapping, or as true or false.

    The order of keys stays: properties are generated in the schema's order. The text of a text is itself, so
    that normalising twice changes nothing.

    Raises:
        ValueError: the reason, as words that follow "decoding.json_schema=...: ".
    """
    if isinstance(value, str):
        if len(value) > MOST_CHARACTERS:
            raise ValueError(f"has {len(value)} characters; at most {MOST_CHARACTERS} are allowed")
        value = _READER.parse(value)
    if not isinstance(value, Mapping | bool):
        raise ValueError(f"found {shown(value)}; a JSON schema is an object, or true or false")
    if errors := value_errors(value, "schema", MOST_NESTING):
        raise ValueError(errors[0])
    # What JSON has no type for is a mapping of another class now.
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=dict)
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"has {len(text)} characters; at most {MOST_CHARACTERS} are allowed")
    return text


_OPTIONS = '%llguidance {"no_forcing": true}\nstart: '
"""Every way of writing the text in tokens stays allowed, not the tokeniser's own alone."""
_JSON_FORM = {
    "whitespace_flexible": True,
    # A line break and indentation, or a space: without a bound a model may write blanks for ever.
    "whitespace_pattern": r"\x0A?\x20{0,16}",
    "item_separator": ",",
    "key_separator": ":",
    "coerce_one_of": False,
    "lenient": False,
}
_FORM_KEY = "x-guidance"
_ONE_OF = "anyOf is, and means the same where no value fits two of the alternatives"
_REASON_CHARACTERS = 300


Kind = Literal["regex", "json_schema"]
"""The parameter that a grammar is given as."""


@dataclass(frozen=True)
class Grammar:
    """A regular expression or schema (`source`, of the parameter `kind`) and the library's text for it."""

    kind: Kind
    source: str
    text: str

    @property
    def name(self) -> str:
        """Constraint as the user wrote it, for error lines."""
        return shown_parameter(self.kind, self.source)


def grammar_of(regex: str | None, json_schema: str | None) -> Grammar | None:
    """The grammar that a row's parameters ask for, or None.

    Raises:
        ValueError: a line that names the parameter and what is wrong with it.
    """
    kind: Kind = "json_schema" if regex is None else "regex"
    source = json_schema if regex is None else regex
    if source is None:
        return None
    try:
        return Grammar(kind, source, _text(kind, source))
    except ValueError as error:
        raise ValueError(f"{shown_parameter(kind, source)}: {_one_line(str(error))}") from error


def refuse_unreadable(kind: Kind, source: str) -> None:
    """ValueError, in one line, for what the library could not read; nothing is compiled."""
    try:
        _text(kind, source)
    except ValueError as error:
        raise ValueError(_one_line(str(error))) from error


def plain_reason(message: str) -> str:
    """The library's message in one line, without the place in our grammar and without an excerpt of it."""
    told = re.split(r"\n\s*1 \| |\n<", message)[0]
    told = re.sub(r"^at \d+\(\d+\): |failed to compile JSON schema: |(?m:^ *\^+\n)", "", told)
    return _one_line(re.sub(r"(oneOf constraints are not supported)\..*", rf"\1; {_ONE_OF}", told))


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _REASON_CHARACTERS else line[:_REASON_CHARACTERS] + "..."


def _text(kind: Kind, source: str) -> str:
    if kind == "regex":
        return f"{_OPTIONS}/{translated(source)}/"
    return f"{_OPTIONS}%json {_with_form(source)}"


def _with_form(schema_text: str) -> str:
    """The schema with how its JSON is to be written, which the library reads from the schema itself."""
    schema = json.loads(canonical_schema(schema_text))
    if schema is False:
        raise ValueError("no text fulfils it")
    schema = {} if schema is True else schema
    if _FORM_KEY in schema:
        raise ValueError(f"has the key {_FORM_KEY!r}, which is the grammar library's own; remove it")
    return json.dumps({**schema, _FORM_KEY: _JSON_FORM}, ensure_ascii=False, separators=(",", ":"))


DEFAULT_LIMITS = Limits(seconds=2.0, memory_bytes=320 << 20)
"""Grammars of use take milliseconds and a few MiB. A sound one is compiled again beside the model, where
nothing else bounds it."""
_MOST_ANSWER_BYTES = 1 << 20
_KEPT_TRIALS = 1024


class GrammarCheck(NamedTuple):
    """Result of compiling a grammar: the reason no row can follow it, or None, and the bytes it takes."""

    error: str | None
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


def constraint_error(regex: str | None, json_schema: str | None) -> str | None:
    """Error in a row's constraint, in one line, or None; it needs no model and no tokenizer."""
    try:
        grammar = grammar_of(regex, json_schema)
    except ValueError as error:
        return str(error)
    return None if grammar is None else tried(grammar).error


def tried(grammar: Grammar) -> GrammarCheck:
    """Compiles the grammar on trial, once; an error names what the user wrote."""
    digest = blake2b(grammar.text.encode(), digest_size=16).digest()
    if digest not in _trials:
        trial = _process.tried(grammar.text)
        if trial.error is not None:
            trial = trial._replace(error=f"{grammar.name}: {plain_reason(trial.error)}")
        if len(_trials) == _KEPT_TRIALS:
            _trials.clear()
        _trials[digest] = trial
    return _trials[digest]
