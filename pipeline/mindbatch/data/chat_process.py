"""Owns the child process that renders templates: starts it, bounds it, and restarts it after a kill."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from mindbatch.errors import PromptError

START_SECONDS = 60.0  # a loaded machine may need long to start a process; this is no limit on the template
_WORKER = Path(__file__).with_name("chat_worker.py")
_CHUNK_BYTES = 1 << 16
_BYTES_PER_CHARACTER = 12  # the longest JSON escape of one character: two \uXXXX


@dataclass(frozen=True, kw_only=True)
class ChatLimits:
    """What one rendering may use: wall-clock seconds, bytes of address space, characters of output."""

    seconds: float = 5.0
    memory_bytes: int = 1 << 30
    max_characters: int = 1 << 24


class WorkerNotStarted(Exception):
    """The child never came up; the message says what was started."""


class TemplateTimeout(PromptError):
    """A rendering that took longer than its limit."""


class ChatProcess:
    """Renders templates in a child process; safe to call from several threads and after a fork.

    `subject` begins every error line: what the template is to the user. Templates of the kind "chat" get the
    surface that transformers documents; those of the kind "data" are strict: see `chat_worker.data_sandbox`.
    """

    def __init__(
        self,
        limits: ChatLimits | None = None,
        *,
        subject: str = "chat template",
        kind: Literal["chat", "data"] = "chat",
    ) -> None:
        self.limits = limits or ChatLimits()
        self._subject = subject
        self._kind = kind
        self._lock = threading.Lock()
        self._worker: _Worker | None = None

    def render(self, template: str, variables: Mapping[str, Any]) -> str:
        """The template's output.

        Raises:
            TemplateTimeout: it took longer than the limit.
            PromptError: one line: the template failed, refused the messages or went over a limit.
        """
        text: str = self._ask({"template": template, "variables": dict(variables)}, "text")
        return text

    def names(self, template: str) -> list[str]:
        """The variables that the template looks up, without rendering it.

        Raises:
            PromptError: one line: it cannot be compiled within the limits.
        """
        names: list[str] = self._ask({"template": template}, "names")
        return names

    def close(self) -> None:
        """Ends the child; the next `render` would start a new one."""
        with self._lock:
            self._stop()

    def _ask(self, question: dict[str, Any], wanted: str) -> Any:
        try:
            request = json.dumps(question).encode("ascii") + b"\n"
        except (RecursionError, TypeError, ValueError) as error:
            raise self._fault(f"what it is given is no plain JSON ({error})") from error
        with self._lock:
            answer = self._answer(request)
        if wanted not in answer:
            raise self._fault(answer["error"])
        return answer[wanted]

    def _fault(self, reason: str) -> PromptError:
        return PromptError(f"{self._subject}: {reason}")

    def _answer(self, request: bytes) -> dict[str, Any]:
        try:
            return self._running().exchange(request, self.limits)
        except TimeoutError:
            self._stop()
            line = f"{self._subject}: stopped: no result after {self.limits.seconds:g} s"
            raise TemplateTimeout(line) from None
        except (WorkerNotStarted, OSError) as error:
            self._stop()
            memory = (
                f"its process ended, most likely out of memory (limit {self.limits.memory_bytes >> 20} MiB)"
            )
            raise self._fault(str(error) or memory) from error
        except BaseException:
            self._stop()  # an interrupted exchange would leave its answer to the next request
            raise

    def _running(self) -> "_Worker":
        if self._worker is None or not self._worker.usable:
            self._stop()
            self._worker = _Worker(self.limits, self._kind)
        return self._worker

    def _stop(self) -> None:
        if self._worker is not None:
            self._worker.stop()
        self._worker = None


class _Worker:
    """One child and the socket to it; the child ends with this object, the interpreter or the socket."""

    def __init__(self, limits: ChatLimits, kind: str) -> None:
        options = json.dumps({**asdict(limits), "kind": kind, "module_folders": _module_folders()})
        self._socket, theirs = socket.socketpair()
        with theirs:
            # Isolated (-I): nothing in the current folder or the environment can stand in for json or jinja2.
            # Own session: Ctrl-C is the parent's business.
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(_WORKER), options],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._owner = os.getpid()
        self.stop = weakref.finalize(self, _end, self._process, self._socket, self._owner)
        try:
            self._read_line(time.monotonic() + START_SECONDS, _CHUNK_BYTES)
        except OSError as error:
            self.stop()
            raise WorkerNotStarted(f"its process did not start ({sys.executable} {_WORKER.name})") from error

    @property
    def usable(self) -> bool:
        """False once the child has ended, and in a forked process, which must not share it."""
        return self._owner == os.getpid() and self._process.poll() is None

    def exchange(self, request: bytes, limits: ChatLimits) -> dict[str, Any]:
        """Sends one request and waits for its answer.

        Raises:
            TimeoutError: no whole answer within limits.seconds.
            ConnectionError: the child ended, or sent more than it may.
        """
        deadline = time.monotonic() + limits.seconds
        self._socket.settimeout(limits.seconds)
        self._socket.sendall(request)
        line = self._read_line(deadline, _BYTES_PER_CHARACTER * limits.max_characters + _CHUNK_BYTES)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _read_line(self, deadline: float, max_bytes: int) -> bytes:
        line = bytearray()
        while not line.endswith(b"\n"):
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError
            self._socket.settimeout(remaining)
            chunk = self._socket.recv(_CHUNK_BYTES)
            line += chunk
            if not chunk or len(line) > max_bytes:
                raise ConnectionError
        return bytes(line)


def _end(process: "subprocess.Popen[bytes]", connection: socket.socket, owner: int) -> None:
    connection.close()
    if os.getpid() == owner:
        process.kill()
        process.wait()


def _module_folders() -> list[str]:
    """Where jinja2 and what it needs are installed, for a child that does not inherit the import path."""
    specs = (importlib.util.find_spec(name) for name in ("jinja2", "markupsafe"))
    return sorted({str(Path(spec.origin).parents[1]) for spec in specs if spec and spec.origin})
