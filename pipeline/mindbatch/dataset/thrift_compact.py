"""Reads what is written in Thrift's compact protocol, as the footers and page headers of Parquet are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MOST_LEVELS = 32
"""Most levels of structs in each other."""
_MOST_BITS = 63
_TRUE, _FALSE, _BYTE, _I16, _I64, _DOUBLE = 1, 2, 3, 4, 6, 7
_BINARY, _LIST, _SET, _MAP, _STRUCT = 8, 9, 10, 11, 12

Wanted = Mapping[int, Any]
"""Fields of a struct by their numbers, each with those that are wanted of it, or of its items."""
NUMBER: Wanted = {}
"""A field that is left out where it is no number."""


class Compact:
    """Reads values from the beginning of the data; IndexError where that ends early."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def place(self) -> int:
        """Offset of the next value."""
        return self._at

    def struct(self, wanted: Wanted) -> dict[int, Any]:
        """The wanted fields of a struct.

        Raises:
            ValueError: a kind of value that there is not, or structs within each other without end.
        """
        return self._struct(wanted, 0)

    def _value(self, kind: int, wanted: Wanted | None, level: int) -> Any:
        """The next value, of a struct the wanted fields; None where nothing is wanted."""
        if level > _MOST_LEVELS:
            raise ValueError("it is nested too deeply")
        if kind in (_TRUE, _FALSE):  # within a list
            return self._byte() == _TRUE
        if kind == _BYTE:
            return self._byte()
        if _I16 <= kind <= _I64:
            return self._zigzag()
        if kind in (_DOUBLE, _BINARY):
            size = 8 if kind == _DOUBLE else self._varint()
            self._at += size
            return None
        if kind in (_LIST, _SET):
            return self._list(wanted, level)
        if kind == _MAP:
            return self._skip_map(level)
        if kind == _STRUCT:
            return self._struct(wanted, level)
        raise ValueError(f"it holds values of the unknown kind {kind}")

    def _struct(self, wanted: Wanted | None, level: int) -> dict[int, Any]:
        values, number = {}, 0
        while head := self._byte():
            step, kind = head >> 4, head & 15
            number = number + step if step else self._zigzag()
            within = None if wanted is None else wanted.get(number)
            value = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, within, level + 1)
            if within or (within is not None and isinstance(value, int)):
                values[number] = value
        return values

    def _list(self, wanted: Wanted | None, level: int) -> list[Any] | None:
        head = self._byte()
        count, kind = head >> 4, head & 15
        if count == 15:
            count = self._varint()
        items = (self._value(kind, wanted, level + 1) for _ in range(count))
        if wanted is not None:
            return list(items)
        for _ in items:
            pass
        return None

    def _skip_map(self, level: int) -> None:
        count = self._varint()
        kinds = self._byte() if count else 0
        for _ in range(count):
            self._value(kinds >> 4, None, level + 1)
            self._value(kinds & 15, None, level + 1)

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _varint(self) -> int:
        value = shift = 0
        while (byte := self._byte()) & 128:
            value |= (byte & 127) << shift
            shift += 7
            if shift > _MOST_BITS:
                raise ValueError("it holds a number without end")
        return value | byte << shift

    def _zigzag(self) -> int:
        number = self._varint()
        return (number >> 1) ^ -(number & 1)
