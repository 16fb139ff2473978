"""JSON of a rank table: read bounded and strictly, every error in a value or key named by its location."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from mindbatch.io import error_lines
from mindbatch.io.regular_file import first_bytes
from mindbatch.io.storage import reason_of
from mindbatch.io.strict_json import JsonError, StrictReader

LARGEST_FILE = 8 << 20
"""Bytes of a table of about 50,000 devices."""

LONGEST_SHOWN = 60


def read_json(path: Path) -> Any:
    """Reads the content of a file. Raises ValueError with a line that explains why it cannot."""
    try:
        data = first_bytes(path, LARGEST_FILE + 1)
    except OSError as error:
        raise ValueError(f"cannot be read ({reason_of(error)})") from error
    if len(data) > LARGEST_FILE:
        raise ValueError(f"more than {LARGEST_FILE >> 20} MiB; no rank table is so large")
    return parse_json(data)


def parse_json(data: bytes) -> Any:
    """Parses `data`. Raises ValueError with one line."""
    try:
        return _READER.parse(data)
    except JsonError as error:
        raise ValueError(f"{error}; JSON has no comments" if b"//" in data else str(error)) from error


def at(location: str, key: str) -> str:
    plain = key.isidentifier() and key.isascii() and len(key) <= LONGEST_SHOWN
    name = key if plain else shown(key)
    return f"{location}.{name}" if location else name


def _as_json(value: object) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return json.dumps(value)


shown = partial(error_lines.shown, longest=LONGEST_SHOWN, notation=_as_json)
"""A value as JSON on one short line of plain characters."""


def as_given(text: str) -> str:
    """`text` as it is where it is a short line that can be printed, else as `shown`."""
    return text if text.isprintable() and len(text) <= LONGEST_SHOWN else shown(text)


_READER = StrictReader(max_digits=20, shown=shown)


LARGEST_PORT = 65535
SYSTEM_PORTS = 1023
LARGEST_ID = 2**32 - 2
"""HCCL keeps ids in 32 bits, and the last value stands for none."""

_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass
class Findings:
    """Errors make a table useless; notes are worth knowing."""

    errors: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class Fields:
    """The keys of one object, read one by one; what is wrong with a value goes to `findings`."""

    content: dict[str, Any]
    location: str
    findings: Findings

    def error(self, key: str, error: str) -> None:
        self.findings.errors.append(f"{at(self.location, key)}: {error}")

    def note(self, key: str, note: str) -> None:
        self.findings.notes.append(f"{at(self.location, key)}: {note}")

    def text(self, key: str, required: bool = False) -> str | None:
        value = self.content.get(key)
        if isinstance(value, str):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            self.error(key, f"a number; must be text, like {shown(str(value))}")
        elif key in self.content:
            self.error(key, f"{shown(value)}; must be text")
        elif required:
            self.error(key, "is missing")
        return None

    def number(self, key: str, least: int, largest: int, required: bool = False) -> int | None:
        """Reads a whole number written as text, as HCCL wants every number."""
        text = self.text(key, required)
        if text is None:
            return None
        if _NUMBER.fullmatch(text) and least <= int(text) <= largest:
            return int(text)
        like = f"must be a whole number from {least} to {largest} as text, like {shown(str(least))}"
        self.error(key, f"{shown(text)}; {like}")
        return None

    def port(self, key: str) -> int | None:
        """Reads a port; notes one that the system reserves."""
        port = self.number(key, 1, LARGEST_PORT)
        if port is not None and port <= SYSTEM_PORTS:
            self.note(key, f"{port} is one of the system's own ports")
        return port

    def addresses(self, key: str) -> str | None:
        """Reads an IP address, or several with commas between them; None where it is missing or empty."""
        text = self.text(key)
        for part in text.split(",") if text else []:
            if error := address_error(part):
                self.error(key, f"{shown(part)}: {error}")
                return None
        return text or None

    def objects(self, key: str, required: bool = True) -> Iterator[Fields]:
        """Yields the objects of a list that must not be empty."""
        entries = self.content.get(key)
        if key not in self.content:
            if required:
                self.error(key, "is missing")
        elif not isinstance(entries, list) or not entries:
            problem = "empty" if entries == [] else shown(entries)
            self.error(key, f"{problem}; must be a list with one object or more")
        else:
            for number, entry in enumerate(entries):
                location = f"{at(self.location, key)}[{number}]"
                if isinstance(entry, dict):
                    yield Fields(entry, location, self.findings)
                else:
                    self.findings.errors.append(f"{location}: {shown(entry)}; must be an object")

    def others(self, known: Collection[str]) -> dict[str, Any]:
        rest = {key: value for key, value in self.content.items() if key not in known}
        for key in rest:
            self.note(key, "a key that HCCL does not document")
        return rest


def address_error(text: str) -> str | None:
    """Explains why `text` cannot be the address of a device; None if it can."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return "not an IPv4 or IPv6 address"
    if address.is_unspecified or address.is_multicast:
        return "stands for no single device"
    return None


def same_addresses(text: str | None) -> list[IpAddress]:
    """Parses a text that `Fields.addresses` took; equal addresses are equal however they are written."""
    return [ipaddress.ip_address(part) for part in text.split(",")] if text else []
