"""Owns a row's own decoding parameters: validated with those of the run, once for each distinct set."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson

from mindbatch.decoding import DecodingParams
from mindbatch.decoding.params import FILTERS
from mindbatch.decoding.params import PARAMETERS as DECODING
from mindbatch.decoding.value_kinds import RANDOM
from mindbatch.io.errors import ConfigError
from mindbatch.io.fault_lines import did_you_mean, shown

PARAMETERS = tuple(name for name, declared in DECODING.items() if declared.in_config)
"""Those that data can hold: no function."""
LARGEST_BYTES = 1 << 20
"""Most bytes of a row's decoding parameters as JSON."""
_MOST_KEPT_BYTES = 4 << 20
"""Bytes of JSON of all known sets of decoding parameters; in memory they take many times as much."""
_OWN_NAME = re.compile(r"\bdecoding\.(\w+)")


def unknown_parameters(names: Mapping[str, Any], where: str) -> list[str]:
    return [
        f"{where}.{name}: no decoding parameter{did_you_mean(name, PARAMETERS)}"
        if isinstance(name, str)
        else f"{where}: {shown(name)} is no decoding parameter"
        for name in names
        if name not in PARAMETERS
    ]


class OverrideRules:
    """Checks overrides together with the run's parameters `base`, which apply where a row says nothing."""

    def __init__(self, base: DecodingParams) -> None:
        self._base = base
        self._known: dict[bytes, tuple[dict[str, Any], tuple[str, ...]]] = {}
        self._known_bytes = 0

    def check(
        self, decoding: Mapping[str, Any], shown_as: Mapping[str, str]
    ) -> tuple[dict[str, Any], list[str]]:
        """The overrides in the one form that equal ones have, and a line for each fault.

        decoding: by parameter, all of them known. shown_as: how the row calls them; others are the run's.
        """
        try:
            known = orjson.dumps(sorted(decoding.items()))  # within a schema the order of keys counts
        except TypeError as error:
            return {}, [f"the row's decoding parameters are no plain JSON ({error})"]
        if len(known) > LARGEST_BYTES:
            return {}, [f"the row's decoding parameters take {len(known)} bytes; at most {LARGEST_BYTES}"]
        if known not in self._known:
            self._known_bytes += len(known)
            if self._known_bytes > _MOST_KEPT_BYTES:
                self._known.clear()
                self._known_bytes = len(known)
            self._known[known] = self._validated(decoding)
        overrides, faults = self._known[known]
        return dict(overrides), [_as_given(fault, shown_as) for fault in faults]

    def _validated(self, decoding: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
        if decoding.get("seed") == RANDOM:
            return {}, ("decoding.seed=random: is for all rows of a run; a row gives a number",)
        if decoding.get("pooling") is not None:  # the row wants no text, and nothing that the run says of it
            defaults = {name: DECODING[name].default for name in PARAMETERS}
            idle = {name: value for name, value in defaults.items() if getattr(self._base, name) != value}
            decoding = {**idle, **decoding}
        if decoding.get("temperature") == 0 and self._base.do_sample:
            # The row wants the likeliest tokens: what the run samples among is not its concern.
            decoding = {**{name: DECODING[name].default for name in FILTERS}, **decoding}
        try:
            params = replace(self._base, **decoding)
        except ConfigError as error:
            return {}, error.faults
        return {name: _as_json(getattr(params, name)) for name in sorted(decoding)}, ()


def _as_json(value: Any) -> Any:
    """The value as it comes back from JSON."""
    return [_as_json(item) for item in value] if isinstance(value, tuple) else value


def _as_given(fault: str, shown_as: Mapping[str, str]) -> str:
    return _OWN_NAME.sub(lambda match: shown_as.get(match[1], match[0]), fault)
