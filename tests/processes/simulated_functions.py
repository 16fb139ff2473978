"""What the simulation's process does in tests of the process itself: none of it loads MindSpore."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from mindbatch.ascend_simulation.process import as_rank
from mindbatch.io.errors import MindBatchError


def count_and_wait(number: str) -> Iterator[int]:
    yield from range(int(number))
    yield os.getpid()
    threading.Event().wait()


def tell_environment() -> Iterator[dict[str, str]]:
    yield {**os.environ}


def write_beside() -> Iterator[str]:
    Path("rank_0/om").mkdir(parents=True)
    yield os.getcwd()


def fail(how: str) -> Iterator[Any]:
    yield how
    raise (
        MindBatchError(["first fault", "second fault"])
        if how == "ours"
        else TypeError("no such operator\nat")
    )


def die() -> Iterator[Any]:
    print("[x.cc] _check_version.py:1 the end is near, says the check", file=sys.stderr)
    print("the end is near\n", file=sys.stderr, flush=True)
    os._exit(7)
    yield


def take(nbytes: str) -> Iterator[int]:
    yield len(bytes(int(nbytes)))


def speak() -> Iterator[Any]:
    yield None
    print("one word\033[2J", file=sys.stderr)


def run_ranks(how: str) -> Iterator[Any]:
    for rank in range(2):
        yield from as_rank(rank, 2, partial(_run_rank, how))


def _run_rank(how: str) -> Iterator[Any]:
    yield [os.environ["RANK_ID"], os.environ["RANK_SIZE"]]
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how != "good":
        yield from fail(how)
