"""The parts of an error line: values shown shortly or as overrides, the name nearest to a misspelt one."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import nlargest
from itertools import takewhile
from typing import Any

_MAX_COMPARED = 32
_MAX_NAMES = 20_000
_MAX_COMPARED_LENGTH = 512
_WORDS = {None: "null", True: "true", False: "false"}
_PLAIN = re.compile(
    r"(?!(?:null|true|false|yes|no|on|off)$)[a-z_][\w./-]*(?: [\w./-]+)*", re.ASCII | re.IGNORECASE
)
"""Texts that need no quotes within a list of YAML."""

_MOST_NAMED = 8
_LONGEST_PARAMETER = 83
"""Characters of a decoding parameter's value: they may be long texts."""


def as_written(value: object, text_notation: Callable[[str], str] = repr) -> str:
    """A value as YAML has it, on one line; texts in quotes, but for plain words within a list or mapping."""

    def inner(item: object) -> str:
        return item if isinstance(item, str) and _PLAIN.fullmatch(item) else written(item)

    def written(item: object) -> str:
        if item is None or isinstance(item, bool):
            return _WORDS[item]
        if isinstance(item, str):
            return text_notation(item)
        if isinstance(item, dict):
            return f"{{{', '.join(f'{inner(key)}: {inner(entry)}' for key, entry in item.items())}}}"
        return f"[{', '.join(map(inner, item))}]" if isinstance(item, list | tuple) else str(item)

    return written(value)


def as_typed(value: object) -> str:
    """A value as one types it on a command line, on one line."""
    return " ".join((value if isinstance(value, str) else as_written(value)).split())


def shown(value: object, longest: int = 60, notation: Callable[[object], str] = as_written) -> str:
    """A value as `notation` writes it, shortened to `longest` characters."""
    try:
        text = notation(_beginning(value, [longest + 1]))
    except (RecursionError, ValueError):  # nested without end, or a number of thousands of digits
        return f"{type(value).__name__} too large to be shown"
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def _beginning(value: Any, left: list[int]) -> Any:
    """As much of a value as can be shown. left: characters, of which every item takes one at least."""
    before = left[0]
    left[0] -= max(1, len(value)) if type(value) is str else 1
    if type(value) is str:
        return value if left[0] >= 0 else value[: max(1, before)]
    if type(value) is dict:
        pairs = takewhile(lambda pair: left[0] > 0, value.items())
        return {_beginning(key, left): _beginning(item, left) for key, item in pairs}
    if type(value) in (list, tuple):
        return type(value)([_beginning(item, left) for item in takewhile(lambda item: left[0] > 0, value)])
    return value


def shown_parameter(name: str, value: object) -> str:
    """`decoding.NAME=VALUE`, cut short."""
    return f"decoding.{name}={shown(value, _LONGEST_PARAMETER)}"


def nearest(word: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The name most like `word`, ignoring case; None when nothing is as like as `cutoff`, of 1.

    Words of more than 512 characters are compared with none, and none with more than 20,000 names.
    """
    from difflib import get_close_matches  # only a mistake pays for the import

    by_lower_case = {name.lower(): name for name in names}
    if len(word) > _MAX_COMPARED_LENGTH or len(by_lower_case) > _MAX_NAMES:
        return None
    likely = _likely(word.lower(), by_lower_case)
    matches = get_close_matches(word.lower(), likely, n=1, cutoff=cutoff)
    return by_lower_case[matches[0]] if matches else None


def did_you_mean(
    word: str, names: Iterable[str], cutoff: float = 0.6, notation: Callable[[str], object] = str
) -> str:
    """The end of an error line: `; did you mean NAME?` with the name nearest to `word`, or nothing."""
    name = nearest(word, names, cutoff)
    return "" if name is None else f"; did you mean {notation(name)}?"


def under_own_names(values: Mapping[str, Any], names: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Renames values to their own names; a line for each given under two. names: own names by others."""
    given_names: dict[str, str] = {}
    twice = []
    for name in values:
        own = names.get(name, name)
        before = given_names.setdefault(own, name)
        if before != name:
            other, kept = (before, name) if name == own else (name, before)
            twice.append(f"{other}: {kept} is given too, and means the same; remove one")
    return {names.get(name, name): value for name, value in values.items()}, twice


def unknown_adapter(name: object, names: Iterable[str]) -> str:
    """Error line for an adapter name that no request can have."""
    there = [*names]
    if not there:
        return f"there is no adapter {shown(name, notation=repr)}: lora.adapters names none"
    more = f" and {len(there) - _MOST_NAMED} more" if len(there) > _MOST_NAMED else ""
    near = did_you_mean(name, there) if isinstance(name, str) else ""
    listed = ", ".join(there[:_MOST_NAMED])
    return f"there is no adapter {shown(name, notation=repr)}; lora.adapters has {listed}{more}{near}"


def _likely(word: str, names: Iterable[str]) -> list[str]:
    """A few names: with all of them difflib takes half a minute for 60 layers with names of another kind."""
    names = list(names)
    if len(names) <= _MAX_COMPARED:
        return names
    pairs = _pairs(word)
    return nlargest(_MAX_COMPARED, names, key=lambda name: len(pairs & _pairs(name)) / (len(name) + 1))


def _pairs(text: str) -> set[str]:
    """Pairs of neighbouring characters of a word."""
    return {text[place : place + 2] for place in range(len(text) - 1)}


_REFERENCE = re.compile(r"(\\*)\$\{")
_QUOTE_OR_END = re.compile(r'(\\*)("|\Z)')


def literal(text: str) -> str:
    """`text` as OmegaConf takes it to the letter: ${ begins a reference but after a backslash."""
    return _REFERENCE.sub(lambda match: match[1] * 2 + "\\${", text)


def text_override(key: str, text: str) -> str:
    """`key="text"` in Hydra's grammar."""
    return f"{key}={quoted(literal(text))}"


def quoted(text: str) -> str:
    """A text in Hydra's grammar, in which a backslash is special before a quote only; a ${ stays one."""

    def escaped(match: re.Match[str]) -> str:
        return match[1] * 2 + ('\\"' if match[2] else "")

    return f'"{_QUOTE_OR_END.sub(escaped, text)}"'


def texts_override(key: str, texts: Sequence[str]) -> str:
    """`key=["text", ...]` in JSON."""
    return f"{key}={json.dumps([literal(text) for text in texts])}"
