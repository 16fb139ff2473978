"""Several ranks in one simulating process: each in a fork, so that MindSpore is imported once."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from mindbatch.backends.failure import BackendError
from mindbatch.child_main import die_with
from mindbatch.config.environment import stand_for_rank

VALUE, ERROR = "value", "error"


def as_rank(rank: int, num_ranks: int, function: Callable[[], Any]) -> Any:
    """What the function returns, a value of JSON, in a fork that stands for a rank.

    It must come before a device is chosen in this process: that, and `init()`, are the function's business.

    Raises:
        BackendError: one line: what the function raised, or how the fork ended.
    """
    ours, theirs = os.pipe()
    parent = os.getpid()
    process = os.fork()
    if not process:
        os.close(ours)
        _answer(theirs, parent, rank, num_ranks, function)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        said = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if not said:
        how = f"ended by signal {-code}" if code < 0 else f"ended with code {code}"
        raise BackendError(f"rank {rank}: {how}")
    kind, value = json.loads(said)
    if kind == ERROR:
        raise BackendError(f"rank {rank}: {value}")
    return value


def _answer(pipe: int, parent: int, rank: int, num_ranks: int, function: Callable[[], Any]) -> None:
    """What the fork does; it does not return."""
    try:
        die_with(parent)
        stand_for_rank(rank, num_ranks)
        answer = json.dumps([VALUE, function()])
    except BaseException as error:
        traceback.print_exc()
        answer = json.dumps([ERROR, first_line(error)])
    with os.fdopen(pipe, "wb") as file:
        file.write(answer.encode())
    sys.stderr.flush()
    os._exit(0)


def first_line(error: BaseException) -> str:
    """The first line of MindSpore's many."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].strip()
