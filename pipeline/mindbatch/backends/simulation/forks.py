"""Several ranks in one simulating process: each in a fork, so that MindSpore is imported once."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

from mindbatch.backends.failure import BackendError
from mindbatch.child_main import die_with
from mindbatch.config.environment import stand_for_rank

VALUE, ERROR = "value", "error"


def as_rank(rank: int, num_ranks: int, function: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    """Yields what the function yields, values of JSON, in a fork that stands for a rank.

    It must come before a device is chosen in this process: that, and `init()`, are the function's business.

    Raises:
        BackendError: one line: what the function raised, or how the fork ended.
    """
    who = f"rank {rank} of {num_ranks}"
    ours, theirs = os.pipe()
    parent = os.getpid()
    process = os.fork()
    if not process:
        os.close(ours)
        _answer(theirs, parent, rank, num_ranks, function)
    os.close(theirs)
    try:
        with os.fdopen(ours, "rb") as pipe:
            for line in pipe:
                kind, value = json.loads(line)
                if kind == ERROR:
                    raise BackendError(f"{who}: {value}")
                yield value
    finally:
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if code:
        how = f"ended by signal {-code}" if code < 0 else f"ended with code {code}"
        raise BackendError(f"{who}: {how}")


def _answer(
    pipe: int, parent: int, rank: int, num_ranks: int, function: Callable[[], Iterable[Any]]
) -> NoReturn:
    """Runs the function in the fork, sends its values or its error, and ends the process."""
    with os.fdopen(pipe, "wb", buffering=0) as file:
        try:
            die_with(parent)
            stand_for_rank(rank, num_ranks)
            for value in function():
                file.write(json.dumps([VALUE, value]).encode() + b"\n")
        except BaseException as error:
            traceback.print_exc()
            file.write(json.dumps([ERROR, first_line(error)]).encode() + b"\n")
    sys.stderr.flush()
    os._exit(0)


def first_line(error: BaseException) -> str:
    """The first line of MindSpore's many."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].strip()
