"""Formats parts of error lines: shortened values, overrides, the name nearest to a misspelt one."""

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

_MAX_NAMED = 8
_LONGEST_PARAMETER = 83
"""Characters of a decoding parameter's value: they may be long texts."""


def as_written(value: object, text_notation: Callable[[str], str] = repr) -> str:
    """Formats a value as YAML on one line, with texts in quotes, except plain words in a list or mapping."""

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
    """Formats a value as typed on a command line, on one line."""
    return " ".join((value if isinstance(value, str) else as_written(value)).split())


def shown(value: object, longest: int = 60, notation: Callable[[object], str] = as_written) -> str:
    """Formats a value by `notation`, shortened to `longest` characters."""
    try:
        text = notation(_beginning(value, [longest + 1]))
    except (RecursionError, ValueError):  # nested without end, or a number of thousands of digits
        return f"{type(value).__name__} too large to be shown"
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def _beginning(value: Any, left: list[int]) -> Any:
    """Returns the part of a value that can be shown. left: characters left, of which every item takes at
    least 1."""
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
    """Formats `decoding.NAME=VALUE`, shortened."""
    return f"decoding.{name}={shown(value, _LONGEST_PARAMETER)}"


def nearest(word: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Returns the name most similar to `word`, ignoring case; None if none reaches `cutoff`, from 0 to 1.

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
    """Returns `; did you mean NAME?` with the name nearest to `word`, for the end of an error line, or
    nothing."""
    name = nearest(word, names, cutoff)
    return "" if name is None else f"; did you mean {notation(name)}?"


def under_own_names(values: Mapping[str, Any], names: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Renames values to their own names; and returns a line for each set twice. names: own names by
    aliases."""
    names_used: dict[str, str] = {}
    twice = []
    for name in values:
        own = names.get(name, name)
        before = names_used.setdefault(own, name)
        if before != name:
            other, kept = (before, name) if name == own else (name, before)
            twice.append(f"{other}: {kept} is given too, and means the same; remove one")
    return {names.get(name, name): value for name, value in values.items()}, twice


def unknown_adapter(name: object, names: Iterable[str]) -> str:
    """Returns the error line for an adapter name that no request can have."""
    there = [*names]
    if not there:
        return f"there is no adapter {shown(name, notation=repr)}: lora.adapters names none"
    more = f" and {len(there) - _MAX_NAMED} more" if len(there) > _MAX_NAMED else ""
    near = did_you_mean(name, there) if isinstance(name, str) else ""
    listed = ", ".join(there[:_MAX_NAMED])
    return f"there is no adapter {shown(name, notation=repr)}; lora.adapters has {listed}{more}{near}"


def _likely(word: str, names: Iterable[str]) -> list[str]:
    """Returns the likeliest names: with all of them difflib takes half a minute for the tensors of 60
    layers."""
    names = list(names)
    if len(names) <= _MAX_COMPARED:
        return names
    pairs = _pairs(word)
    return nlargest(_MAX_COMPARED, names, key=lambda name: len(pairs & _pairs(name)) / (len(name) + 1))


def _pairs(text: str) -> set[str]:
    """Returns the pairs of neighbouring characters of a word."""
    return {text[start : start + 2] for start in range(len(text) - 1)}


_REFERENCE = re.compile(r"(\\*)\$\{")
_QUOTE_OR_END = re.compile(r'(\\*)("|\Z)')


def literal(text: str) -> str:
    """Escapes a text for OmegaConf, in which ${ begins a reference unless a backslash precedes it."""
    return _REFERENCE.sub(lambda match: match[1] * 2 + "\\${", text)


def text_override(key: str, text: str) -> str:
    """Formats `key="text"` in Hydra's grammar."""
    return f"{key}={quoted(literal(text))}"


def quoted(text: str) -> str:
    """Quotes a text for Hydra's grammar, in which a backslash is special only before a quote."""

    def escaped(match: re.Match[str]) -> str:
        return match[1] * 2 + ('\\"' if match[2] else "")

    return f'"{_QUOTE_OR_END.sub(escaped, text)}"'


def texts_override(key: str, texts: Sequence[str]) -> str:
    """Formats `key=["text", ...]` in JSON."""
    return f"{key}={json.dumps([literal(text) for text in texts])}"
