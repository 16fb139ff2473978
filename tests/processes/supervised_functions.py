"""What supervised processes of tests do; they find it by name."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path


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


def supervise(folder: str) -> None:
    """A parent: starts two processes, says which, and waits."""
    from mindbatch.io.children import command
    from mindbatch.launch.launcher_programs import program_command
    from mindbatch.launch.supervisor import Supervisor

    supervisor = Supervisor(Path(folder))
    supervisor.start("rank_0", command(say_and_wait, "on"), os.environ)
    program = program_command([sys.executable, "-c", "import signal; signal.pause()"])
    supervisor.start("msrun", program, os.environ)
    print(*(supervisor.process_id(name) for name in supervisor.names), flush=True)
    threading.Event().wait()
