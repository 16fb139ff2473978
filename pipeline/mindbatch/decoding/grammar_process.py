"""Owns the child process that tries grammars out: starts it, bounds it, and restarts it after a kill."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import dataclass
from pathlib import Path

_WORKER = Path(__file__).with_name("grammar_worker.py")
_START_SECONDS = 60.0  # a loaded machine may need long to start a process
_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class GrammarLimits:
    """What trying one grammar may use: wall-clock seconds, bytes of address space."""

    seconds: float = 10.0
    memory_bytes: int = 1 << 30


class GrammarProcess:
    """Says what is wrong with grammars; safe to call from several threads and after a fork."""

    def __init__(self, limits: GrammarLimits | None = None) -> None:
        self.limits = limits or GrammarLimits()
        self._lock = threading.Lock()
        self._child: _Child | None = None

    def fault(self, grammar: str) -> str | None:
        """Why no row can follow the grammar, or None."""
        folder = _library_folder()
        if folder is None:
            return "constrained output needs the package llguidance, which is not installed"
        with self._lock:
            try:
                if self._child is None or not self._child.usable:
                    self._stop()
                    self._child = _Child(self.limits, folder)
                return self._child.exchange(grammar, self.limits.seconds)
            except TimeoutError:
                self._stop()
                return f"compiling it takes more than {self.limits.seconds:g} s"
            except OSError:
                self._stop()
                return (
                    "the process that compiled it ended, most likely out of memory "
                    f"(limit {self.limits.memory_bytes >> 20} MiB)"
                )
            except BaseException:
                self._stop()  # an interrupted exchange would leave its answer to the next grammar
                raise

    def close(self) -> None:
        """Ends the child; the next grammar starts a new one."""
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        if self._child is not None:
            self._child.stop()
        self._child = None


class _Child:
    """The process and the socket to it; it ends with this object, the interpreter or the socket."""

    def __init__(self, limits: GrammarLimits, folder: str) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            # Isolated (-I): nothing in the current folder or the environment can stand in for llguidance.
            # Own session: Ctrl-C is the parent's business.
            process = subprocess.Popen(
                [sys.executable, "-I", str(_WORKER), str(limits.memory_bytes), folder],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._process, self._owner = process, os.getpid()
        self.stop = weakref.finalize(self, _end, process, self._socket, self._owner)
        try:
            self._read(time.monotonic() + _START_SECONDS)
        except OSError as error:
            self.stop()
            raise ConnectionError("not started") from error

    @property
    def usable(self) -> bool:
        """False once the process has ended, and in a forked process, which must not share it."""
        return self._owner == os.getpid() and self._process.poll() is None

    def exchange(self, grammar: str, seconds: float) -> str | None:
        """The answer to a grammar. TimeoutError if it takes longer, ConnectionError if the process ended."""
        deadline = time.monotonic() + seconds
        self._socket.settimeout(seconds)
        self._socket.sendall(json.dumps(grammar).encode("ascii") + b"\n")
        answer: str | None = json.loads(self._read(deadline))
        return answer

    def _read(self, deadline: float) -> bytes:
        line = bytearray()
        while not line.endswith(b"\n"):
            self._socket.settimeout(max(deadline - time.monotonic(), 1e-3))
            chunk = self._socket.recv(_CHUNK_BYTES)
            if not chunk:
                raise ConnectionError
            line += chunk
        return bytes(line)


def _end(process: subprocess.Popen[bytes], connection: socket.socket, owner: int) -> None:
    connection.close()
    if os.getpid() == owner:
        process.kill()
        process.wait()


def _library_folder() -> str | None:
    """Where llguidance is installed, for a child that does not inherit the import path."""
    spec = importlib.util.find_spec("llguidance")
    return None if spec is None or spec.origin is None else str(Path(spec.origin).parents[1])
