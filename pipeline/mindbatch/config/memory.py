"""Memory: how much this machine has, and amounts of it as users write them."""

import re
from decimal import Decimal
from pathlib import Path

GIB = 1 << 30
MEMINFO = Path("/proc/meminfo")
MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")

UNITS = {"": 1, "B": 1} | {
    f"{letter}{suffix}": base**power
    for suffix, base in (("B", 1000), ("IB", 1024))
    for power, letter in enumerate("KMGT", start=1)
}
ALLOWED = "bytes, or a number with KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024)"
_PATTERN = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{1,6})?)\s*([A-Za-z]*)\s*")


def memory(meminfo: Path = MEMINFO, limit: Path = MEMORY_LIMIT) -> dict[str, int]:
    """Bytes of memory: `total` and `available`, and the container's `limit` if it has one."""
    kilobytes = dict(line.split(":", 1) for line in lines(meminfo) if ":" in line)
    found = {
        name: int(kilobytes[field].split()[0]) * 1024
        for name, field in (("total", "MemTotal"), ("available", "MemAvailable"))
        if field in kilobytes
    }
    maximum = "".join(lines(limit)).strip()
    return found | ({"limit": int(maximum)} if maximum.isdigit() else {})


def free_memory() -> int | None:
    """Bytes that may still be taken; None where the system does not say."""
    found = memory()
    return min((found[key] for key in ("available", "limit") if key in found), default=None)


def whole_memory() -> int | None:
    """Bytes that this machine, or its container, has; None where the system does not say."""
    found = memory()
    return min((found[key] for key in ("total", "limit") if key in found), default=None)


def lines(file: Path) -> list[str]:
    """The lines of a system file; none where the system has no such file."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


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
