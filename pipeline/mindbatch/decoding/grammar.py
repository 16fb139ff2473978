"""Translates a regular expression or JSON schema to the text that the grammar library (llguidance) reads."""

import json
import re
from dataclasses import dataclass
from typing import Literal

from mindbatch.decoding.json_text import canonical_schema
from mindbatch.decoding.python_regex import translated
from mindbatch.io import fault_lines

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
        return shown(self.kind, self.source)


def grammar_of(regex: str | None, json_schema: str | None) -> Grammar | None:
    """The grammar that a row's parameters ask for, or None.

    Raises:
        ValueError: a line that names the parameter and what is wrong with it.
    """
    if regex is not None and json_schema is not None:
        raise ValueError(f"{shown('regex', regex)} cannot go with decoding.json_schema; remove one of them")
    kind: Kind = "json_schema" if regex is None else "regex"
    source = json_schema if regex is None else regex
    if source is None:
        return None
    try:
        return Grammar(kind, source, _text(kind, source))
    except ValueError as error:
        raise ValueError(f"{shown(kind, source)}: {one_line(str(error))}") from error


def text_fault(kind: Kind, source: str) -> str | None:
    """Reason why the library could not read this, in one line, or None; nothing is compiled."""
    try:
        _text(kind, source)
    except ValueError as error:
        return one_line(str(error))
    return None


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
    return f"decoding.{kind}={fault_lines.shown(source, fault_lines.LONGEST_PARAMETER)}"


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
