"""Processor and compilers of this machine, as the operating system reports them."""

import os
import platform
import shutil
import time
from pathlib import Path

from mindbatch.config.machine import lines
from mindbatch.io.children import run

CPUINFO = Path("/proc/cpuinfo")
PROCESS_STATUS = Path("/proc/self/stat")
_STARTED = 19  # of the fields after the name: starttime, proc(5)

USED_FLAGS = (
    "avx2",
    "fma",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "bf16",
)
"""Processor flags that decide which kernel is used, or how fast it is."""

COMPILERS = ("g++", "clang++")
_COMPILER_SECONDS = 10


def processor(cpuinfo: Path = CPUINFO) -> str:
    """The processor's name, or its architecture where the system tells no name."""
    return _cpu_field(cpuinfo, "model name") or platform.processor() or platform.machine()


def processor_flags(cpuinfo: Path = CPUINFO) -> list[str]:
    """Those of `USED_FLAGS` that the processor has."""
    flags = (_cpu_field(cpuinfo, "flags") or _cpu_field(cpuinfo, "Features")).split()
    return [flag for flag in USED_FLAGS if flag in flags]


def process_age(status: Path = PROCESS_STATUS) -> float:
    """Seconds since this process was started; 0 where the system does not say."""
    fields = "".join(lines(status)).rpartition(")")[2].split()
    started = int(fields[_STARTED]) / os.sysconf("SC_CLK_TCK") if len(fields) > _STARTED else None
    return 0.0 if started is None else time.clock_gettime(time.CLOCK_BOOTTIME) - started


def compilers() -> dict[str, str | None]:
    """C++ compiler -> the first line that it says about its version; None when it is not installed."""
    return {name: version_line(name) for name in COMPILERS}


def version_line(name: str) -> str | None:
    """The first line that a program says about its version; None when it is not installed."""
    path = shutil.which(name)
    if path is None:
        return None
    try:
        output = run([path, "--version"], _COMPILER_SECONDS).output
    except OSError:  # TimeoutError is one
        return f"{path} does not run"
    return (output.splitlines() or [path])[0]


def _cpu_field(cpuinfo: Path, field: str) -> str:
    for line in lines(cpuinfo):
        name, _, value = line.partition(":")
        if name.strip() == field:
            return value.strip()
    return ""
