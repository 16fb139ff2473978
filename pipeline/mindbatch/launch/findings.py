"""What is found in the values of a rank table, and how single values are read."""

import ipaddress
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from mindbatch.launch.table_json import at, shown

LARGEST_PORT = 65535
SYSTEM_PORTS = 1023
LARGEST_ID = 2**32 - 2
"""HCCL keeps ids in 32 bits, and the last value stands for none."""

_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass
class Findings:
    """Faults make a table useless; notes are worth knowing."""

    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class Fields:
    """The keys of one object, read one by one; what is wrong with a value goes to `found`."""

    content: dict[str, Any]
    place: str
    found: Findings

    def text(self, key: str, required: bool = False) -> str | None:
        """A text; None where there is none."""
        if key not in self.content:
            if required:
                self.found.faults.append(f"{at(self.place, key)}: is missing")
            return None
        value = self.content[key]
        if isinstance(value, str):
            return value
        kind = "a number" if _is_number(value) else shown(value)
        told = (
            f"{kind}; must be text, like {shown(str(value))}"
            if _is_number(value)
            else f"{kind}; must be text"
        )
        self.found.faults.append(f"{at(self.place, key)}: {told}")
        return None

    def number(self, key: str, least: int, most: int, required: bool = False) -> int | None:
        """A whole number written as text, as HCCL wants every number."""
        text = self.text(key, required)
        if text is None:
            return None
        if _NUMBER.fullmatch(text) and least <= int(text) <= most:
            return int(text)
        self.found.faults.append(
            f"{at(self.place, key)}: {shown(text)}; must be a whole number from {least} to {most} as text, "
            f"like {shown(str(least))}"
        )
        return None

    def port(self, key: str) -> int | None:
        """A port, which the system does not reserve."""
        port = self.number(key, 1, LARGEST_PORT)
        if port is not None and port <= SYSTEM_PORTS:
            self.found.notes.append(f"{at(self.place, key)}: {port} is one of the system's own ports")
        return port

    def addresses(self, key: str) -> str | None:
        """An IP address, or several with commas between them; None where there is none or it is empty."""
        text = self.text(key)
        for part in text.split(",") if text else []:
            if fault := address_fault(part):
                self.found.faults.append(f"{at(self.place, key)}: {shown(part)}: {fault}")
                return None
        return text or None

    def objects(self, key: str, required: bool = True) -> "Iterator[Fields]":
        """The objects of a list that is not empty."""
        place = at(self.place, key)
        if key not in self.content:
            if required:
                self.found.faults.append(f"{place}: is missing")
            return
        entries = self.content[key]
        if not isinstance(entries, list) or not entries:
            what = "empty" if entries == [] else shown(entries)
            self.found.faults.append(f"{place}: {what}; must be a list with one object or more")
            return
        for number, entry in enumerate(entries):
            if isinstance(entry, dict):
                yield Fields(entry, f"{place}[{number}]", self.found)
            else:
                self.found.faults.append(f"{place}[{number}]: {shown(entry)}; must be an object")

    def others(self, known: Collection[str]) -> dict[str, Any]:
        """The keys that are not `known`."""
        rest = {key: value for key, value in self.content.items() if key not in known}
        for key in rest:
            self.found.notes.append(f"{at(self.place, key)}: a key that HCCL does not document")
        return rest


def address_fault(text: str) -> str | None:
    """Why `text` cannot be the address of a device, or None when it can."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return "not an IPv4 or IPv6 address"
    if address.is_unspecified or address.is_multicast:
        return "stands for no single device"
    return None


def same_addresses(text: str | None) -> list[IpAddress]:
    """The addresses in a text that `Fields.addresses` took; equal ones are equal however they are written."""
    return [ipaddress.ip_address(part) for part in text.split(",")] if text else []


def spans(numbers: Sequence[int]) -> str:
    """Ascending numbers in short: `0 to 3, 5`."""
    groups: list[list[int]] = []
    for number in numbers:
        if groups and number == groups[-1][1] + 1:
            groups[-1][1] = number
        else:
            groups.append([number, number])
    return ", ".join(f"{first} to {last}" if last > first else str(first) for first, last in groups)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
