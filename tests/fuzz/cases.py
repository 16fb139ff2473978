"""Runs one reader over many changed files, in child processes of bounded memory and processor time."""

from __future__ import annotations

import mmap
import os
import re
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from fuzz.mutations import Mutation
from mindbatch.io.errors import MindBatchError

MEMORY = 512 << 20
"""Address space that the cases of a child may take beside what the child begins with."""
CPU_SECONDS = 2.0
"""Processor time of one case; one that takes more is a fault, and far more ends it."""
WALL_SECONDS = 60
"""After which a case that waits without computing is killed."""
LONGEST_LINE = 2000
_CASES_PER_CHILD = 500
_JOBS_PER_CHILD = 50
_MEMORY_OF_JOBS = 4
"""Times MEMORY: threads reserve much that they do not use."""
_ONLY_A_COUNT = re.compile(r"\.\.\. and \d+ more [a-z ]+")


@dataclass(frozen=True)
class Reader:
    """Something that reads a file from outside.

    make: writes a good folder and gives the files of it that are changed, one at a time. read: what is tried,
    given the changed file. share: cases for each hundred of the others, for what takes long. bare_lines: its
    messages need not name the file, and may hold what the command line escapes and cuts. is_job: it starts
    threads, so that what is good is read in a child, too.
    """

    name: str
    make: Callable[[Path], list[Path]]
    read: Callable[[Path], object]
    mutation: Mutation
    share: int = 100
    bare_lines: bool = False
    is_job: bool = False


class Fault(Exception):
    """What a case must not do."""


def run_reader(reader: Reader, cases: range, kept: Path) -> list[str]:
    """A line for each kind of fault found, with the file of `kept` that makes it happen again."""
    found: dict[str, str] = {}
    with TemporaryDirectory() as home:
        folder = Path(home) / reader.name
        folder.mkdir()
        files = {path: path.read_bytes() for path in reader.make(folder)}
        for path in () if reader.is_job else files:
            reader.read(path)  # what is good is read
        first = cases.start
        while first < cases.stop:
            last = min(cases.stop, first + (_JOBS_PER_CHILD if reader.is_job else _CASES_PER_CHILD))
            first, fault = _in_child(reader, folder, files, range(first, last))
            if fault:
                place, content = _case(reader, files, first - 1)
                where = kept / f"{reader.name}-{first - 1}-{place.name}"
                kept.mkdir(parents=True, exist_ok=True)
                where.write_bytes(content)
                found.setdefault(
                    fault.partition(": ")[0], f"{reader.name}: case {first - 1} ({where}): {fault}"
                )
    return list(found.values())


def _case(reader: Reader, files: dict[Path, bytes], number: int) -> tuple[Path, bytes]:
    random = Random(f"{reader.name}:{number}")
    path = random.choice(list(files))
    return path, reader.mutation(random, files[path])


def _in_child(reader: Reader, folder: Path, files: dict[Path, bytes], cases: range) -> tuple[int, str]:
    """The first case that is still to be run, and the fault of the one before it, if it had one."""
    progress = mmap.mmap(-1, 8)
    progress[:] = cases.start.to_bytes(8, "little")
    receiving, sending = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.close(receiving)
        with os.fdopen(sending, "w", encoding="utf-8", errors="backslashreplace") as pipe:
            try:
                _bound_memory(MEMORY * (_MEMORY_OF_JOBS if reader.is_job else 1))
                for path in files if reader.is_job else ():
                    reader.read(path)
                for number in cases:
                    progress[:] = number.to_bytes(8, "little")
                    _try(reader, folder, files, number)
            except Fault as fault:
                pipe.write(str(fault))
            except BaseException:
                pipe.write("the fuzzer itself failed: " + traceback.format_exc())
        os._exit(0)
    os.close(sending)
    with os.fdopen(receiving, encoding="utf-8") as pipe:
        fault = pipe.read()
    _, status = os.waitpid(child, 0)
    if not fault and os.WIFSIGNALED(status):
        fault = f"the process was ended by {signal.Signals(os.WTERMSIG(status)).name}"
    reached = int.from_bytes(progress[:], "little")
    return (reached + 1, fault) if fault else (cases.stop, "")


def _try(reader: Reader, folder: Path, files: dict[Path, bytes], number: int) -> None:
    path, content = _case(reader, files, number)
    path.write_bytes(content)
    begin = _bound_time()
    try:
        reader.read(path)
    except MindBatchError as error:
        _check(error.lines, None if reader.bare_lines else folder)
    except BaseException as error:
        raise Fault(_described(error)) from error
    finally:
        for each, good in files.items():
            if each == path or not each.exists():
                each.write_bytes(good)
    taken = time.process_time() - begin
    if taken > CPU_SECONDS:
        raise Fault(f"more than {CPU_SECONDS:g} s of processor time")


def _described(error: BaseException) -> str:
    """What was raised, and the last place of the project's own that it came through."""
    if isinstance(error, Fault):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "mindbatch" in frame.filename] or frames
    where = f"{Path(own[-1].filename).name}:{own[-1].lineno}"
    return f"{type(error).__name__} at {where}: {str(error)[:300]}"


def _check(faults: tuple[str, ...], folder: Path | None) -> None:
    if not faults or not all(faults):
        raise Fault("a refusal without a word")
    for line in faults if folder else ():
        if str(folder) not in line and not _ONLY_A_COUNT.fullmatch(line):
            raise Fault(f"a line that names no file: {line[:300]}")
        if not line.isprintable():
            raise Fault(f"a line with control characters: {line[:300]!r}")
        if len(line) > LONGEST_LINE:
            raise Fault(f"a line of {len(line)} characters: {line[:300]}")


def _bound_memory(more: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _bound_time() -> float:
    """Processor time so far; far beyond it the system ends the process, and an alarm one that waits."""
    begin = time.process_time()
    resource.setrlimit(resource.RLIMIT_CPU, (int(begin + CPU_SECONDS) + 1, resource.RLIM_INFINITY))
    signal.alarm(WALL_SECONDS)
    return begin
