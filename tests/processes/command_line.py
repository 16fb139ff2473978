"""Running the command as a user does: in an empty folder, with an empty home."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

LANGUAGE = ("PATH", "LANG", "LC_ALL")


def heed_signals() -> None:
    """In a process that will be sent them: behind nohup or in the background they are ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def wait_until(reached: Callable[[], bool], process: "subprocess.Popen[Any]") -> None:
    """Waits for what the process will do; it may not end before."""
    while not reached():
        assert process.poll() is None, "it ended before"
        time.sleep(0.002)


class CommandLine:
    """Runs `python -m mindbatch` in `here` and sees to it that nothing is left there."""

    def __init__(self, folder: Path) -> None:
        self.here, self.home = folder / "here", folder / "home"
        self.here.mkdir()
        self.home.mkdir()

    def run(
        self,
        *arguments: str,
        stdin: bytes = b"",
        leaves: Sequence[str] = (),
        environment: dict[str, str] | None = None,
    ) -> "subprocess.CompletedProcess[str]":
        """The finished run; exactly the files of `leaves` may be in the folder afterwards."""
        keep = {name: os.environ[name] for name in LANGUAGE if name in os.environ}
        result = subprocess.run(
            [sys.executable, "-m", "mindbatch", *arguments],
            cwd=self.here,
            env={**keep, "HOME": str(self.home), **(environment or {})},
            input=stdin,
            capture_output=True,
            timeout=300,
            check=False,
            umask=0o022,
        )
        assert sorted(os.listdir(self.here)) == sorted(leaves)
        return subprocess.CompletedProcess(
            result.args, result.returncode, result.stdout.decode(), result.stderr.decode()
        )

    def started(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """A run that is still going on, for signals; it is killed if it takes minutes."""
        process = subprocess.Popen(
            [sys.executable, "-m", "mindbatch", *arguments],
            cwd=self.here,
            env={"PATH": os.environ["PATH"], "HOME": str(self.home)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=heed_signals,
        )
        overdue = threading.Timer(120, process.kill)
        overdue.daemon = True
        overdue.start()
        return process
