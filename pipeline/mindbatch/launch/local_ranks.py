"""Rank processes on this machine: started, watched and ended by this process."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from mindbatch.children import end_session, spawn
from mindbatch.errors import MindBatchError
from mindbatch.launch.ranks import EndedRank
from mindbatch.regular_file import open_own, open_regular

_SHOWN_LINES = 5
_SHOWN_BYTES = 4096
_SECONDS_TO_END = 2.0


@dataclass
class _Process:
    process: subprocess.Popen[bytes]
    log: Path
    is_told: bool = field(default=False)


class LocalRanks:
    """The ranks of a job, each in a session of its own with its log `rank_N.log`; they end with this object.

    command: of a rank process. environment_of: (rank, attempt) -> its variables, beside this process's own.
    replica_size: ranks of a replica, which are neighbours. logs: a folder that exists.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment_of: Callable[[int, int], dict[str, str]],
        world_size: int,
        replica_size: int,
        logs: Path,
    ) -> None:
        """Starts all. Raises MindBatchError where a process cannot be started."""
        self._command = list(command)
        self._environment_of = environment_of
        self._replica_size = replica_size
        self._logs = logs
        self._processes: dict[int, _Process] = {}
        self._end = weakref.finalize(self, _end_all, self._processes, os.getpid())
        try:
            for rank in range(world_size):
                self._start(rank, 0)
        except BaseException:
            self.end()
            raise

    def ended(self) -> list[EndedRank]:
        """See `Ranks.ended`."""
        found = []
        for rank, each in self._processes.items():
            code = each.process.poll()
            if code is not None and not each.is_told:
                each.is_told = True
                how = f"signal {-code}" if code < 0 else f"exit code {code}"
                found.append(EndedRank(rank, how, last_lines(each.log)))
        return found

    def restart(self, replica: int, attempt: int) -> None:
        """See `Ranks.restart`."""
        ranks = range(replica * self._replica_size, (replica + 1) * self._replica_size)
        _end_sessions([self._processes[rank].process for rank in ranks])
        for rank in ranks:
            self._start(rank, attempt)

    def end(self) -> None:
        """See `Ranks.end`."""
        self._end()

    def _start(self, rank: int, attempt: int) -> None:
        log = self._logs / f"rank_{rank}.log"
        try:
            output = open_own(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            try:
                os.fchmod(output, 0o600)  # prompts may be in it
                process = spawn(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env={**os.environ, **self._environment_of(rank, attempt)},
                )
            finally:
                os.close(output)
        except OSError as error:
            raise MindBatchError(
                f"rank {rank} cannot be started ({log}: {error.strerror or error})"
            ) from error
        self._processes[rank] = _Process(process, log)


def last_lines(log: Path) -> tuple[str, ...]:
    """The last lines of a log, a few and of bounded length."""
    with suppress(OSError), open(open_regular(log), "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _SHOWN_BYTES))
        lines = file.read(_SHOWN_BYTES).decode(errors="replace").splitlines()
        return tuple(line for line in lines if line.strip())[-_SHOWN_LINES:]
    return ()


def _end_all(processes: dict[int, _Process], owner: int) -> None:
    if os.getpid() == owner:
        _end_sessions([each.process for each in processes.values()])


def _end_sessions(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """SIGTERM to all, and SIGKILL to the sessions of what is left after two seconds."""
    for process in processes:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + _SECONDS_TO_END
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
        end_session(process)
