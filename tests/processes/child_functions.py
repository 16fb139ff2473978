"""What child processes of tests do; they find it by name."""

import os
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

from mindbatch.io.child_main import serve


def answer_once(connection: Connection, word: str) -> None:
    connection.send((word, connection.recv()))


def say_who_and_wait(connection: Connection) -> None:
    connection.send(os.getpid())
    connection.recv()


def leave(connection: Connection) -> None:
    sys.exit(3)


def serve_anything(connection: Connection, seconds: str, memory_bytes: str) -> None:
    """Answers a request, a list whose first item says what to do with the rest."""
    actions: dict[str, Callable[..., object]] = {
        "echo": lambda word: word,
        "who": os.getpid,
        "compute": _compute,
        "sleep": threading.Event().wait,
        "leave": sys.exit,
        "take": lambda nbytes: len(bytes(nbytes)),
        "long": lambda length: "x" * length,
    }
    serve(connection, lambda request: actions[request[0]](*request[1:]), float(seconds), int(memory_bytes))


def _compute(seconds: float) -> float:
    """Holds the processor, and the interpreter's lock within one call most of the time."""
    while time.process_time() < seconds:
        sum(range(10**6))
    return seconds
