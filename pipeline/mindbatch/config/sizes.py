"""Amounts of memory as users write them: `512MB`, `1.5GiB`, plain bytes."""

import re
from decimal import Decimal

UNITS = {"": 1, "B": 1} | {
    f"{letter}{suffix}": base**power
    for suffix, base in (("B", 1000), ("IB", 1024))
    for power, letter in enumerate("KMGT", start=1)
}
ALLOWED = "bytes, or a number with KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024)"
_PATTERN = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{1,6})?)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str) -> int:
    """The number of bytes that `text` stands for, at least 1. Raises ValueError saying what is allowed."""
    found = _PATTERN.fullmatch(text)
    unit = UNITS.get(found[2].upper()) if found else None
    if found is None or unit is None:
        raise ValueError(f"must be {ALLOWED}")
    size = int(Decimal(found[1]) * unit)
    if size < 1:
        raise ValueError("must be at least one byte")
    return size
