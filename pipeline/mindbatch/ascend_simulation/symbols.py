"""The functions of CANN that MindSpore's Ascend plugin wants, read off its libraries."""

from __future__ import annotations

import ctypes
import mmap
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from mindbatch.ascend_simulation.plugin import AscendPlugin
from mindbatch.backends.failure import BackendError
from mindbatch.io.children import run
from mindbatch.io.storage import reason_of

_LOOKED_UP = re.compile(rb"\0(acl[A-Za-z0-9_]{3,60})(?=\0)")
_NOT_CANN = re.compile(r"_?Py|_ITM_|_ZTH")  # Python's, the compiler's, wrappers of thread-local variables
_SYSTEM = ("libm.so.6", "libdl.so.2", "libpthread.so.0", "libgcc_s.so.1", "libstdc++.so.6")
_TOOL_SECONDS = 120


def wanted_functions(plugin: AscendPlugin) -> list[str]:
    """Lists functions that the plugin links and MindSpore and the system lack, or looks up while it runs.

    Raises:
        BackendError: no program nm, or it failed.
    """
    wanted, had = undefined(plugin.parts), defined([*plugin.others, *plugin.parts])
    missing = {name for name in wanted - had if not _NOT_CANN.match(name)}
    system = _system_libraries()
    linked = {name for name in missing if not any(hasattr(library, name) for library in system)}
    return sorted(linked | looked_up(plugin.readers))


def undefined(libraries: Sequence[Path]) -> set[str]:
    """Names of functions that the libraries want and cannot do without.

    What has a version (`name@GLIBC_2.2.5`) is the system's: CANN gives its symbols none.
    """
    return {fields[-1] for fields in _listing("--undefined-only", libraries) if _is_wanted(fields)}


def _is_wanted(fields: Sequence[str]) -> bool:
    return len(fields) == 2 and fields[0] == "U" and "@" not in fields[1]


def defined(libraries: Sequence[Path]) -> set[str]:
    """Names that the libraries have."""
    return {fields[-1].partition("@")[0] for fields in _listing("--defined-only", libraries) if fields}


def looked_up(libraries: Iterable[Path]) -> set[str]:
    """Names of functions that stand as texts in the libraries (for dlsym)."""
    names: set[str] = set()
    for path in libraries:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            names.update(name.decode() for name in _LOOKED_UP.findall(content))
    return names


def needed_tool(*names: str) -> str:
    """The path of the first of these programs that is there. BackendError when none is."""
    for name in names:
        if program := shutil.which(name):
            return program
    raise BackendError(
        f"{' or '.join(names)}: no such program on the PATH; Ascend is simulated with stub libraries, which "
        "are made with gcc and binutils (apt install gcc)"
    )


def run_tool(command: Sequence[str]) -> str:
    """Runs a program of the compiler and returns its output. BackendError with the first line on failure."""
    try:
        done = run(command, _TOOL_SECONDS)
    except TimeoutError:
        raise BackendError(f"{command[0]}: no end after {_TOOL_SECONDS} s") from None
    except OSError as error:
        raise BackendError(f"{command[0]}: cannot be run ({reason_of(error)})") from error
    if done.code:
        reason = next(iter(done.errors.strip().splitlines()), "nothing said")
        raise BackendError(f"{command[0]}: failed with code {done.code}: {reason}")
    return done.output


def _listing(kind: str, libraries: Sequence[Path]) -> Iterator[list[str]]:
    output = run_tool([needed_tool("nm"), "-D", kind, *map(str, libraries)])
    return (line.split() for line in output.splitlines() if not line.endswith(":"))


def _system_libraries() -> list[ctypes.CDLL]:
    """Loads every process's libraries and C++ programs': old compilers left versions out of some names."""
    libraries = [ctypes.CDLL(None)]
    for name in _SYSTEM:
        with suppress(OSError):
            libraries.append(ctypes.CDLL(name))
    return libraries
