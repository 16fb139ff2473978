"""Typed values of a file's metadata; every error is noted, and keys that nobody has read are counted."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mindbatch.checkpoint.error_lines import raise_if_any, shown
from mindbatch.checkpoint.formats.gguf_file import Texts

_LARGEST = (1 << 31) - 1


class Metadata:
    """path: of the file, for messages. Keys of the architecture are given without its name."""

    def __init__(self, values: Mapping[str, Any], path: object) -> None:
        self.values, self.path = values, path
        self.errors: list[str] = []
        self._read = set[str]()
        self.architecture = self.text("general.architecture")

    def error(self, key: str, problem: str) -> None:
        self.errors.append(f"{key}={shown(self.values.get(key))}: {problem}")

    def raise_errors(self) -> None:
        raise_if_any(self.errors, str(self.path))

    def own(self, key: str) -> str:
        return f"{self.architecture}.{key}"

    def has(self, key: str) -> bool:
        return self.own(key) in self.values

    def unread(self) -> Iterator[str]:
        """The architecture's keys that were not read."""
        prefix = self.own("")
        return (key for key in self.values if key.startswith(prefix) and key not in self._read)

    def ignore(self, *keys: str) -> None:
        """Declares keys of the architecture to be without effect."""
        self._read.update(map(self.own, keys))

    def text(self, key: str, default: str | None = None) -> str:
        value = self._value(key, default)
        if isinstance(value, str):
            return value
        self.error(key, "must be a text")
        return ""

    def texts(self, key: str) -> list[str]:
        value = self._value(key, None)
        if isinstance(value, Texts):
            return value.decoded()
        self.error(key, "must be an array of texts")
        return []

    def numbers(self, key: str, count: int) -> list[float]:
        """An array of so many numbers."""
        value = self._value(key, None)
        if isinstance(value, np.ndarray) and len(value) == count and np.isfinite(value).all():
            numbers: list[float] = value.tolist()
            return numbers
        self.error(key, f"must be {count} numbers")
        return [0.0] * count

    def flag(self, key: str, default: bool) -> bool:
        value = self._value(key, default)
        if isinstance(value, bool):
            return value
        self.error(key, "must be true or false")
        return default

    def token(self, key: str, count: int) -> int | None:
        """The id of one of so many tokens; None where there is none."""
        value = self._value(key, None)
        if value is None or (type(value) is int and 0 <= value < count):
            return value
        self.error(key, f"must be the id of one of {count} tokens")
        return None

    def count(self, key: str, default: int | None = None, largest: int = _LARGEST) -> int:
        """A positive number of the architecture."""
        value = self._value(self.own(key), default)
        if type(value) is int and 0 < value <= largest:
            return value
        self.error(self.own(key), f"must be a whole number from 1 to {largest}, the same for all layers")
        return 1

    def whole(self, key: str) -> int:
        """A number of the architecture that may be 0."""
        value = self._value(self.own(key), None)
        if type(value) is int and 0 <= value <= _LARGEST:
            return value
        self.error(self.own(key), "must be a whole number")
        return 0

    def number(self, key: str, default: float | None = None) -> float:
        """A number above 0 of the architecture, in the fewest digits that are the same float32."""
        value = self._value(self.own(key), default)
        if type(value) in (int, float) and 0 < value < 1e30:
            return float(str(np.float32(value)))
        self.error(self.own(key), "must be a number above 0")
        return 1.0

    def _value(self, key: str, default: Any) -> Any:
        self._read.add(key)
        return self.values.get(key, default)
