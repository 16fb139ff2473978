"""Settings of operations as int32 words for C++: derived from the keywords of their NumPy functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from inspect import Parameter, signature
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt

from mindbatch.kernels.shapes import OneOf

Words = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Number:
    """One word: an int, a bool, or the bits of a float32."""

    type: type[int] | type[float] | type[bool]


@dataclass(frozen=True)
class Numbers:
    """A word for how many, then a word for each."""

    item: Number


@dataclass(frozen=True)
class Maybe:
    """A word for whether there is one, then its words."""

    layout: SettingLayout


@dataclass(frozen=True)
class Struct:
    """The words of named parts, one after another."""

    name: str
    parts: tuple[tuple[str, SettingLayout], ...]


SettingLayout = Number | Numbers | OneOf | Maybe | Struct


@cache
def settings_layout(function: Callable[..., Any]) -> Struct:
    """The layout of the keyword-only parameters of an operation's NumPy function."""
    hints = get_type_hints(function, include_extras=True)
    parts = tuple((name, layout_of(hints[name])) for name in _parameters(function, is_setting=True))
    words = function.__name__.split("_")
    return Struct("".join(word.capitalize() for word in words) + "Settings", parts)


@cache
def input_types(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotated types of the other parameters, by their names."""
    hints = get_type_hints(function, include_extras=True)
    return {name: hints[name] for name in _parameters(function, is_setting=False)}


def _parameters(function: Callable[..., Any], *, is_setting: bool) -> list[str]:
    parameters = signature(function).parameters.items()
    return [name for name, value in parameters if (value.kind is Parameter.KEYWORD_ONLY) == is_setting]


def with_extras(struct: Struct, extras: Mapping[str, Any]) -> Struct:
    """The layout with parts of these types behind its own."""
    return Struct(struct.name, (*struct.parts, *((name, layout_of(hint)) for name, hint in extras.items())))


@cache
def layout_of(hint: Any) -> SettingLayout:
    """The layout of values of an annotated type.

    Raises:
        TypeError: settings have no such values.
    """
    arguments = get_args(hint)
    if hint in (int, float, bool):
        return Number(hint)
    if get_origin(hint) is Annotated and isinstance(arguments[1], OneOf):
        return arguments[1]
    if get_origin(hint) is tuple and arguments[0] in (int, float) and {*arguments[1:]} <= {arguments[0], ...}:
        return Numbers(Number(arguments[0]))
    if get_origin(hint) in (Union, UnionType) and arguments[1:] == (type(None),):
        return Maybe(layout_of(arguments[0]))
    if isinstance(hint, type) and is_dataclass(hint):
        hints = get_type_hints(hint, include_extras=True)
        return Struct(
            hint.__name__, tuple((field.name, layout_of(hints[field.name])) for field in fields(hint))
        )
    raise TypeError(f"a setting of type {hint}: no layout in words; see mindbatch.kernels.settings")


def encoded(layout: Struct, settings: Mapping[str, Any]) -> Words:
    """The words of settings by name."""
    words = [word for name, part in layout.parts for word in _words(part, settings[name])]
    return np.array(words, np.int32)


def _words(layout: SettingLayout, value: Any) -> Iterator[int]:
    match layout:
        case Number(type=kind):
            yield int(np.float32(value).view(np.int32)) if kind is float else int(value)
        case Numbers(item=item):
            yield len(value)
            for number in value:
                yield from _words(item, number)
        case OneOf(names=names):
            yield names.index(value)
        case Maybe(layout=inner):
            yield int(value is not None)
            if value is not None:
                yield from _words(inner, value)
        case Struct(parts=parts):
            for name, part in parts:
                yield from _words(part, getattr(value, name))
