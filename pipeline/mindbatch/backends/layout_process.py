"""Owns the child that works out a layout: starts it, follows its reports, bounds it, leaves nothing of it."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindbatch.backends.failure import BackendError
from mindbatch.children import end_session, output_of, spawn

LOG_NAME = "worker.log"
_CHUNK = 4096
_LONGEST_ERROR = 300


@dataclass(frozen=True)
class Limits:
    """Seconds until the processes have found each other, and for everything."""

    joined: float = 60.0
    total: float = 600.0


class NotJoined(BackendError):
    """The processes did not find each other: worth another try."""


@dataclass
class _Progress:
    """How far the child is. looking_since: when its processes began to look for each other, if they did."""

    started: float
    looking_since: float | None = None
    joined: int = 0
    is_done: bool = False
    failure: str | None = None

    @property
    def is_over(self) -> bool:
        return self.is_done or self.failure is not None


class LayoutProcess:
    """One run of the child.

    command: to run in `folder` with `environment`; the id of this process is added as the last argument.
    num_ranks: how many report to have joined.
    """

    def __init__(
        self, command: Sequence[str], folder: Path, environment: Mapping[str, str], num_ranks: int
    ) -> None:
        self._command = command
        self._folder = folder
        self._environment = environment
        self._num_ranks = num_ranks

    def run(self, limits: Limits) -> None:
        """Returns when the child has reported that all is done.

        Raises:
            NotJoined: the processes did not find each other in time.
            BackendError: one line: the first failure, with the rank; no end in time; it cannot be started.
        """
        with (self._folder / LOG_NAME).open("wb") as log:
            try:
                process = spawn(
                    self._command,
                    cwd=self._folder,
                    env=dict(self._environment),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                )
            except OSError as error:
                raise BackendError(f"{self._command[0]}: cannot be started ({error.strerror})") from error
        try:
            self._follow(process, limits)
        finally:
            _end(process)

    def _follow(self, process: subprocess.Popen[bytes], limits: Limits) -> None:
        progress, rest = _Progress(time.monotonic()), b""
        try:
            for chunk in output_of(process, lambda: self._seconds_left(progress, limits)):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    _note(progress, line)
                if progress.is_over:
                    break
        except TimeoutError:
            raise self._overdue(progress, limits) from None
        if progress.failure:
            raise BackendError(progress.failure)
        if not progress.is_done:
            raise BackendError(f"the process for the layout {_how(process)}{self._last_words()}")

    def _seconds_left(self, progress: _Progress, limits: Limits) -> float:
        end = progress.started + limits.total
        if self._is_looking(progress):
            assert progress.looking_since is not None
            end = min(end, progress.looking_since + limits.joined)
        return end - time.monotonic()

    def _is_looking(self, progress: _Progress) -> bool:
        return progress.looking_since is not None and progress.joined < self._num_ranks

    def _overdue(self, progress: _Progress, limits: Limits) -> BackendError:
        if self._is_looking(progress) and time.monotonic() - progress.started < limits.total:
            return NotJoined(
                f"{progress.joined} of {self._num_ranks} processes found each other in {limits.joined:g} s"
            )
        return BackendError(
            f"no layout after {limits.total:g} s; layout.timeout gives it longer{self._last_words()}"
        )

    def _last_words(self) -> str:
        """The end of the log: what a process says that cannot report any more."""
        lines = (self._folder / LOG_NAME).read_bytes()[-_CHUNK:].decode(errors="replace").split("\n")
        said = [" ".join(line.split()) for line in lines if line.strip()]
        return f"; its last line: {said[-1][:_LONGEST_ERROR]}" if said else ""


def _note(progress: _Progress, line: bytes) -> None:
    """Takes a report; after the end, or the first failure, no other counts."""
    if progress.is_over:
        return
    report = _parsed(line)
    event = report.get("event")
    if event == "started":
        progress.looking_since = time.monotonic()
    elif event == "joined":
        progress.joined += 1
    elif event == "done":
        progress.is_done = True
    elif event in ("failed", "ended"):
        rank, error = report.get("rank", -1), " ".join(str(report.get("error", "")).split())
        who = "the scheduler" if rank == -1 else f"rank {rank}"
        progress.failure = f"MindSpore's layout failed on {who}: {error[:_LONGEST_ERROR]}"


def _parsed(line: bytes) -> dict[str, Any]:
    """The report; what is none (a library that prints where it should not) is empty."""
    try:
        report = json.loads(line)
    except ValueError:
        return {}
    return report if isinstance(report, dict) else {}


def _how(process: subprocess.Popen[bytes]) -> str:
    """How a child ended that has closed its output. One that runs on is as good as gone."""
    with suppress(subprocess.TimeoutExpired):
        code = process.wait(5)
        return f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
    return "closed its output"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills the whole group and returns when nobody of it is left."""
    end_session(process)
    if process.stdout is not None:
        while process.stdout.read(_CHUNK):  # its end: the last holder of the pipe is gone
            pass
        process.stdout.close()
