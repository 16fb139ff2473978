"""`mindbatch generate` on a terminal, and signals while it starts: what is shown, and how it ends."""

import os
import pty
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from command_line import CommandLine, wait_until

pytestmark = pytest.mark.slow

CONVERSATION = ("interactive=true", "decoding.eos_token_id=[]", "decoding.max_new_tokens=200")


def test_ctrl_c_ends_the_answer_and_then_the_conversation() -> None:
    child, terminal = pty.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # tests in a shell's background inherit an ignored one
        os.environ["TERM"] = "xterm"
        os.execv(
            sys.executable, [sys.executable, "-m", "mindbatch", "generate", "model=tiny_gpt2", *CONVERSATION]
        )
    shown = b""

    def read_until(seen: Callable[[], bool]) -> None:
        nonlocal shown
        while not seen():
            shown += os.read(terminal, 4096)

    read_until(lambda: shown.endswith(b"> "))
    os.write(terminal, b"9 + 8 =\n")
    read_until(lambda: b"=\r\n 17" in shown)
    os.write(terminal, b"\x03")
    read_until(lambda: shown.endswith(b"\n> "))
    # A key that comes as readline begins to wait is seen with the next one.
    while b"mindbatch: interrupted" not in shown:
        os.write(terminal, b"\x03")
        while select.select([terminal], [], [], 1)[0] and b"mindbatch: interrupted" not in shown:
            shown += os.read(terminal, 4096)
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 130
    loading, _, conversation = shown.decode().rpartition("\r\x1b[K")
    assert "\r\x1b[Kloading weights 100%" in loading
    assert conversation.startswith("Type a prompt and Enter")
    assert len(conversation.splitlines()[3]) < 100, "the whole answer was given"


def test_lines_are_edited_where_a_conversation_has_the_terminal() -> None:
    """The left arrow moves the cursor, as readline has it."""
    child, terminal = pty.fork()
    if child == 0:
        command = [sys.executable, "-m", "mindbatch", "generate", "model=tiny_gpt2", "interactive=true"]
        os.execv(sys.executable, command)
    shown = b""
    while not shown.endswith(b"> "):
        shown += os.read(terminal, 4096)
    os.write(terminal, b"9  8 =\x1b[D\x1b[D\x1b[D\x1b[D+\n")
    while not shown.endswith(b" 17.\r\n> "):  # and readline waits again
        shown += os.read(terminal, 4096)
    os.write(terminal, b"\x04")
    with suppress(OSError):  # of a terminal that nobody has any more; readline ends when all is read
        while os.read(terminal, 4096):
            pass
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0


ANSWERS = {
    signal.SIGINT: (130, b"mindbatch: interrupted\n"),
    signal.SIGTERM: (143, b"mindbatch: terminated\n"),
}


GENERATE = ("generate", "model=tiny_gpt2", "prompts=hello")


def has_mapped(process: "subprocess.Popen[bytes]", library: str) -> bool:
    return library in Path(f"/proc/{process.pid}/maps").read_text()


# Each is loaded in the middle of an import: of NumPy, and of tokenizers.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "number", "kernels"),
    [
        ("_multiarray_umath", signal.SIGINT, "auto"),
        pytest.param("tokenizers.abi3", signal.SIGTERM, "auto", marks=pytest.mark.on_demand),
        ("_multiarray_umath", signal.SIGTERM, "reference"),
    ],
)
def test_a_signal_while_libraries_are_imported(
    own_process: CommandLine, library: str, number: int, kernels: str
) -> None:
    with own_process.started(*GENERATE, f"runtime.kernels={kernels}") as process:
        wait_until(lambda: has_mapped(process, library), process)
        process.send_signal(number)
        _, err = process.communicate()
    assert (process.returncode, err) == ANSWERS[signal.Signals(number)]


@pytest.mark.on_demand
@pytest.mark.slow
def test_a_signal_at_any_moment(own_process: CommandLine) -> None:
    """From the first import on: before it, Python itself answers."""
    for seed in range(100):
        chance = random.Random(seed)
        number = chance.choice([*ANSWERS])
        with own_process.started(*GENERATE) as process:
            wait_until(lambda process=process: has_mapped(process, "_signal"), process)
            time.sleep(chance.uniform(0, 8))
            process.send_signal(number)
            _, err = process.communicate()
        assert process.returncode == 0 or (process.returncode, err) == ANSWERS[number], seed
