"""What child and supervised processes of tests do; they find it by name."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

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


def say_and_leave(text: str, code: str) -> None:
    print(text)
    sys.exit(int(code))


def say_and_wait(text: str) -> None:
    print(text, flush=True)
    threading.Event().wait()


def stop_unwilling_to_end() -> None:
    """Ignores SIGTERM, starts another such process in its group, says both numbers and stops."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    program = [sys.executable, "-c", "import signal; signal.pause()"]
    print(os.getpid(), subprocess.Popen(program).pid, flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    threading.Event().wait()


def die_with_a_child_left() -> None:
    program = [sys.executable, "-c", "import signal; signal.pause()"]
    print(subprocess.Popen(program).pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def flood(megabytes: str) -> None:
    for number in range(int(megabytes) << 6):
        sys.stdout.write(f"{number:016383}\n")
    print("the end", flush=True)


PROGRAM = """
import os, signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
os.chdir(sys.argv[1])
with open("child.partial", "w") as file:
    file.write(str(child.pid))
os.rename("child.partial", "child")
signal.pause()
"""


def supervise(folder: str) -> None:
    """Starts a rank, and a kept program whose child has a session of its own; prints their ids and waits."""
    from mindbatch.io.children import command
    from mindbatch.launch.scripts.reaper import run_and_reap
    from mindbatch.launch.supervisor import Supervisor

    supervisor = Supervisor(Path(folder))
    supervisor.start("rank_0", command(say_and_wait, "on"), os.environ)
    supervisor.start("program", command(run_and_reap, sys.executable, "-c", PROGRAM, folder), os.environ)
    child = Path(folder, "child")
    while not child.exists():
        time.sleep(0.01)
    print(*map(supervisor.process_id, supervisor.names), child.read_text(), flush=True)
    threading.Event().wait()
