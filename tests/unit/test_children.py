"""Child processes: what they are told and answer, and when they end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from child_functions import answer_once, say_who_and_wait
from mindbatch import children

PARENT = """
import time
from child_functions import say_who_and_wait
from mindbatch import children
connection, child = children.start(say_who_and_wait)
print(connection.recv(), flush=True)
time.sleep(600)
"""
TESTS = str(Path(__file__).parents[1])


def test_a_function_of_a_module_is_called_there() -> None:
    connection, child = children.start(answer_once, "word")
    connection.send([1, 2])
    assert connection.recv() == ("word", [1, 2])
    assert child.wait(60) == 0
    children.end(child, connection)


def test_an_interrupt_is_left_to_the_parent() -> None:
    connection, child = children.start(say_who_and_wait)
    os.kill(connection.recv(), signal.SIGINT)
    connection.send("on")
    assert child.wait(60) == 0
    children.end(child, connection)


def test_it_is_ended_whatever_it_does() -> None:
    connection, child = children.start(say_who_and_wait)
    connection.recv()
    children.end(child, connection)
    assert child.poll() == -signal.SIGKILL


def test_it_dies_with_its_parent() -> None:
    environment = {**os.environ, "PYTHONPATH": TESTS}
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        child = Path("/proc") / parent.stdout.readline().strip()
        assert child.exists()
        parent.kill()
    deadline = time.monotonic() + 60
    while child.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not child.exists()
