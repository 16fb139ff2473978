"""Owns what a regular expression or a JSON schema becomes for the grammar library (llguidance).

The library is imported only where a row asks for a constraint.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

from mindbatch import fault_lines
from mindbatch.decoding.grammar_process import GrammarProcess, Trial
from mindbatch.decoding.json_text import canonical_schema
from mindbatch.decoding.python_regex import translated

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
_KEPT_TRIALS = 1024
MOST_SHOWN = 83
"""Characters of a value in a fault line."""

_process = GrammarProcess()
_trials: dict[bytes, Trial] = {}
"""By the digest of a grammar's text, which may be long."""


@dataclass(frozen=True)
class Grammar:
    """A regular expression or schema (`source`, of the parameter `kind`) and the library's text for it."""

    kind: Literal["regex", "json_schema"]
    source: str
    text: str

    @property
    def name(self) -> str:
        """What the user wrote, for error lines."""
        return shown(self.kind, self.source)


def grammar_of(regex: str | None, json_schema: str | None) -> Grammar | None:
    """The grammar that a row's parameters ask for, or None.

    Raises:
        ValueError: a line that names the parameter and what is wrong with it.
    """
    if regex is not None and json_schema is not None:
        raise ValueError(f"{shown('regex', regex)} cannot go with decoding.json_schema; remove one of them")
    try:
        if regex is not None:
            return Grammar("regex", regex, f"{_OPTIONS}/{translated(regex)}/")
        if json_schema is not None:
            return Grammar("json_schema", json_schema, f"{_OPTIONS}%json {_with_form(json_schema)}")
    except ValueError as error:
        kind, source = ("regex", regex) if regex is not None else ("json_schema", json_schema)
        raise ValueError(f"{shown(kind, source or '')}: {one_line(str(error))}") from error
    return None


def form_fault(regex: str | None, json_schema: str | None) -> str | None:
    """What is wrong with how a row's constraint is written, in one line, or None; nothing is compiled."""
    try:
        grammar_of(regex, json_schema)
    except ValueError as error:
        return str(error)
    return None


def constraint_fault(regex: str | None, json_schema: str | None) -> str | None:
    """What is wrong with a row's constraint, in one line, or None; it needs no model and no tokenizer.

    The library compiles the grammar in a child process that is bounded in processor time and memory: some
    short schemas take it many seconds and gigabytes.
    """
    if fault := form_fault(regex, json_schema):
        return fault
    grammar = grammar_of(regex, json_schema)
    return None if grammar is None else tried(grammar).fault


def tried(grammar: Grammar) -> Trial:
    """What compiling the grammar came to, in a child process; its fault names what the user wrote."""
    digest = blake2b(grammar.text.encode(), digest_size=16).digest()
    if digest not in _trials:
        trial = _process.tried(grammar.text)
        if trial.fault is not None:
            trial = trial._replace(fault=f"{grammar.name}: {plain_reason(trial.fault)}")
        if len(_trials) == _KEPT_TRIALS:
            _trials.clear()
        _trials[digest] = trial
    return _trials[digest]


def plain_reason(message: str) -> str:
    """The library's message in one line, without the place in our grammar and without an excerpt of it."""
    told = re.split(r"\n\s*1 \| |\n<", message)[0]
    told = re.sub(r"^at \d+\(\d+\): |failed to compile JSON schema: |(?m:^ *\^+\n)", "", told)
    return one_line(re.sub(r"(oneOf constraints are not supported)\..*", rf"\1; {_ONE_OF}", told))


def one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _REASON_CHARACTERS else line[:_REASON_CHARACTERS] + "..."


def shown(kind: str, source: str) -> str:
    """`decoding.KIND=SOURCE`, cut short."""
    return f"decoding.{kind}={fault_lines.shown(source, MOST_SHOWN)}"


def _with_form(schema_text: str) -> str:
    """The schema with how its JSON is to be written, which the library reads from the schema itself."""
    schema = json.loads(canonical_schema(schema_text))
    if schema is False:
        raise ValueError("no text fulfils it")
    schema = {} if schema is True else schema
    if _FORM_KEY in schema:
        raise ValueError(f"has the key {_FORM_KEY!r}, which is the grammar library's own; remove it")
    return json.dumps({**schema, _FORM_KEY: _JSON_FORM}, ensure_ascii=False, separators=(",", ":"))
