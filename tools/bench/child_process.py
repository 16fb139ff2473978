"""Child processes of the benchmarks: starting them, asking them, and answering from within them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any


def command(python: str | Path, module: str, *arguments: object) -> list[str]:
    """Returns the command that runs the `main` of a module of this package, with any interpreter."""
    return [str(python), str(Path(__file__).parent), module, *map(str, arguments)]


class Worker:
    """A module of this package in a process of its own, which answers one JSON line with one JSON line.

    facts: what it said when it was ready.
    errors: where its standard error goes; None: to this process's own.
    seconds: after which it is killed; None: never.
    """

    def __init__(
        self,
        python: str,
        module: str,
        *arguments: object,
        errors: IO[str] | None = None,
        seconds: float | None = None,
    ) -> None:
        self._process = subprocess.Popen(
            command(python, module, *arguments),
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


def has_modules(python: str, *names: str) -> bool:
    """Returns whether an interpreter can import all of these modules."""
    code = f"import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, {names})))"
    return subprocess.run([python, "-c", code], check=False).returncode == 0
