"""How much memory this machine has."""

from pathlib import Path

GIB = 1 << 30
MEMINFO = Path("/proc/meminfo")
MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")


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
