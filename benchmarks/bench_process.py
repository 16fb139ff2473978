"""Child processes of the benchmarks: asking them, answering from within them, and their memory."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any


class Worker:
    """A script of this folder in a process of its own, which answers one JSON line with one JSON line.

    facts: what it said when it was ready.
    errors: where its standard error goes; None: to this process's own.
    seconds: after which it is killed; None: never.
    """

    def __init__(
        self,
        python: str,
        script: str,
        *arguments: object,
        errors: IO[str] | None = None,
        seconds: float | None = None,
    ) -> None:
        self._process = subprocess.Popen(
            [python, str(Path(__file__).with_name(script)), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        self._timer = threading.Timer(seconds or 0, self._process.kill)
        if seconds is not None:
            self._timer.start()
        self.facts = self._read()

    def ask(self, **request: Any) -> Any:
        """Sends a request and waits for the answer."""
        assert self._process.stdin is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return self._read()

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._timer.cancel()
        self._process.stdin.close()
        self._process.wait()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._timer.cancel()
            raise SystemExit(f"the worker ended with exit code {self._process.wait()}")
        return json.loads(line)


def serve(facts: Any, answer: Callable[..., Any]) -> None:
    """The other side of `Worker`: says what it is, then answers requests until standard input ends."""
    print(json.dumps(facts), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(**json.loads(line))), flush=True)


def has_torch(python: str) -> bool:
    """Whether an interpreter can import torch and transformers."""
    code = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, ('torch', 'transformers'))))"
    return subprocess.run([python, "-c", code], check=False).returncode == 0


def memory_bytes(field: str) -> int:
    """A field of /proc/self/status in bytes: VmRSS now, VmHWM at its highest."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith(field))
    return int(line.split()[1]) * 1024
