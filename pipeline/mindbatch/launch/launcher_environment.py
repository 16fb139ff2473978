"""The environment that a launcher starts copies of a command in, and the rendezvous of those on one host."""

from __future__ import annotations

import itertools
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from mindbatch.io.error_lines import shown
from mindbatch.io.errors import ConfigError, MindBatchError
from mindbatch.io.regular_file import read_regular
from mindbatch.io.screen_text import say
from mindbatch.io.storage import reason_of, write_whole

Address = tuple[str, int]
LARGEST_SIZE = 1 << 20
_FIRST_PORT, _NUM_PORTS = 20_000, 10_000
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_NUMBER = re.compile(r"[0-9]{1,7}")
_HOST_CHARACTERS = re.compile(r"[A-Za-z0-9_.:-]{1,253}")


@dataclass(frozen=True)
class LauncherEnvironment:
    """The variables of a launcher that has started this process as copy `rank` of `size`.

    launcher: msrun, mpirun, rank_table or srun. is_scheduler: True for the copy that msrun starts in addition
    to its workers, which has nothing to do. master_addr, master_port: address of copy 0, where the launcher
    sets it. job: a name that the copies share and no other job has. rank_table: a path. local_rank: among the
    copies on this node, where the launcher sets it. is_on_one_host: True if the launcher says so of all
    copies. device_id: the device that the launcher has chosen.
    """

    launcher: str
    rank: int
    size: int
    is_scheduler: bool = False
    master_addr: str | None = None
    master_port: int | None = None
    job: str | None = None
    rank_table: str | None = None
    local_rank: int = 0
    is_on_one_host: bool = False
    device_id: int | None = None

    @property
    def identity(self) -> str:
        """Name that the copies of a job share, and jobs that run on a host at the same time do not."""
        name = self.job or self.rank_table or f"{self.master_addr}:{self.master_port}"
        return f"{self.launcher} {name} {self.size}"


def launcher_environment(environment: Mapping[str, str]) -> LauncherEnvironment | None:
    """Reads the variables of the launchers; None for a process that is the only one of its job.

    Where several have left their variables, as msrun within a job of Slurm, the innermost counts.
    Raises ConfigError with every error where they contradict themselves.
    """
    read = _Variables(environment)
    copy = _by_msrun(read) or _by_mpirun(read) or _by_rank_table(read) or _by_srun(read)
    if read.errors:
        raise ConfigError(read.errors)
    return copy if copy is not None and (copy.size > 1 or copy.is_scheduler) else None


def launcher_watch(copy: LauncherEnvironment) -> Callable[[], None]:
    """Returns a function that raises MindBatchError once the launcher of this copy has ended: copies must not
    outlive it. A script that starts copies by a rank table need not wait for them."""
    parent = os.getppid()

    def check() -> None:
        if copy.launcher in ("mpirun", "msrun") and os.getppid() != parent:
            raise MindBatchError(f"{copy.launcher} has ended, and so do the processes that it has started")

    return check


def port_of(job: str) -> int:
    """Returns a default port for the rendezvous of a job's copies, the same for each, from 20000 to 29999."""
    return _FIRST_PORT + crc32(job.encode()) % _NUM_PORTS


def first_host(nodes: str) -> str | None:
    """Returns the first host of Slurm's compressed list, `a03` of `a[03-10,12],b1`; None for no such list."""
    entry = re.match(r"(?:[^\[\],]|\[[^\[\]]*\])+", nodes.strip())
    if entry is None:
        return None
    host = re.sub(r"\[([0-9]+)[^\[\]]*\]", r"\1", entry[0])
    return host if _HOST_CHARACTERS.fullmatch(host) else None


class _Variables:
    """Reads variables; `errors` is filled on the way."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.errors: list[str] = []

    def text(self, name: str) -> str | None:
        """Returns the value of a variable; None where it is not set or empty."""
        return self._environment.get(name) or None

    def has(self, *names: str) -> bool:
        return all(self.text(name) is not None for name in names)

    def number(self, name: str, least: int, largest: int, launcher: str) -> int:
        """Reads a number; where it is missing or out of range it notes an error and returns `least`."""
        text = self._environment.get(name, "")
        number = int(text) if _NUMBER.fullmatch(text) else -1
        if least <= number <= largest:
            return number
        error = f"{name}={shown(text)}" if text else f"{name} is not set"
        self.errors.append(f"{error}: must be {least} to {largest}; {launcher} sets it")
        return least

    def optional(self, name: str, largest: int, launcher: str) -> int | None:
        """Reads a number; None where the variable is not set."""
        return self.number(name, 0, largest, launcher) if self.has(name) else None

    def rank_of(self, rank: str, size: str, launcher: str) -> tuple[int, int]:
        num_copies = self.number(size, 1, LARGEST_SIZE, launcher)
        known = not self.errors
        return self.number(rank, 0, num_copies - 1 if known else LARGEST_SIZE, launcher), num_copies


def _by_msrun(read: _Variables) -> LauncherEnvironment | None:
    if not read.has("MS_ROLE", "MS_SCHED_HOST", "MS_SCHED_PORT"):
        return None
    role = read.text("MS_ROLE")
    port = read.number("MS_SCHED_PORT", 1, 65535, "msrun")
    if role == "MS_SCHED":
        rank, size = 0, read.number("MS_WORKER_NUM", 1, LARGEST_SIZE, "msrun")
    elif role == "MS_WORKER":
        rank, size = read.rank_of("RANK_ID", "MS_WORKER_NUM", "msrun")
    else:
        read.errors.append(f"MS_ROLE={shown(role)}: must be MS_WORKER or MS_SCHED, or not set")
        return None
    return LauncherEnvironment(
        "msrun",
        rank,
        size,
        is_scheduler=role == "MS_SCHED",
        master_addr=read.text("MS_SCHED_HOST"),
        master_port=port,
        is_on_one_host=read.text("MS_SCHED_HOST") in _LOOPBACK,
        device_id=read.optional("DEVICE_ID", LARGEST_SIZE, "msrun"),
    )


def _by_mpirun(read: _Variables) -> LauncherEnvironment | None:
    if not read.has("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"):
        return None
    rank, size = read.rank_of("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "mpirun")
    is_one_host = read.text("OMPI_COMM_WORLD_LOCAL_SIZE") == str(size)
    return LauncherEnvironment(
        "mpirun",
        rank,
        size,
        master_addr="127.0.0.1" if is_one_host else None,
        job=read.text("PMIX_NAMESPACE") or read.text("OMPI_MCA_ess_base_jobid"),
        local_rank=read.optional("OMPI_COMM_WORLD_LOCAL_RANK", size - 1, "mpirun") or 0,
        is_on_one_host=is_one_host,
    )


def _by_rank_table(read: _Variables) -> LauncherEnvironment | None:
    if not read.has("RANK_ID", "RANK_SIZE", "RANK_TABLE_FILE"):
        return None
    launcher = "who starts by a rank table"
    rank, size = read.rank_of("RANK_ID", "RANK_SIZE", launcher)
    return LauncherEnvironment(
        "rank_table",
        rank,
        size,
        rank_table=read.text("RANK_TABLE_FILE"),
        device_id=read.optional("DEVICE_ID", LARGEST_SIZE, launcher),
    )


def _by_srun(read: _Variables) -> LauncherEnvironment | None:
    """Reads the variables of a step: an sbatch script has SLURM_PROCID, too, and is alone."""
    if not read.has("SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"):
        return None
    rank, size = read.rank_of("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "srun")
    nodes = read.text("SLURM_STEP_NODELIST") or read.text("SLURM_JOB_NODELIST") or ""
    return LauncherEnvironment(
        "srun",
        rank,
        size,
        master_addr=first_host(nodes),
        job=f"slurm {read.text('SLURM_JOB_ID')}.{read.text('SLURM_STEP_ID')}",
        local_rank=read.optional("SLURM_LOCALID", size - 1, "srun") or 0,
        is_on_one_host=read.text("SLURM_STEP_NUM_NODES") == "1",
    )


SECONDS = 600.0
"""Seconds within which all copies must load their model."""

SAME_CALLS = "under a launcher every process must make the same calls, in the same order"

_QUIET_SECONDS = 10.0
_BETWEEN_LOOKS = 0.05
_MAX_BYTES = 4096
_numbers = itertools.count()


class Coordinator(NamedTuple):
    """The address at which copy 0 listens for the others, and the key of the job."""

    address: Address
    key: bytes


@dataclass(frozen=True)
class Rendezvous:
    """The rendezvous of the copies of a job on one host for one model: a file that exists while they come.

    Launchers pass no secret to the copies, so copy 0 writes the key to the file, in a folder that only its
    user may enter and that is no link.
    """

    file: Path

    @classmethod
    def next_of(cls, identity: str) -> Rendezvous:
        """Returns the next rendezvous of this process: the n-th model of each copy is the same.

        identity: of the job among those on this host.

        Raises:
            MindBatchError: the folder cannot be made, or somebody else has its name.
        """
        folder = Path(tempfile.gettempdir()) / f"mindbatch-{os.getuid()}"
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            pass
        except OSError as error:
            raise MindBatchError(f"{folder}: cannot be made ({reason_of(error)})") from error
        there = folder.lstat()
        if there.st_uid != os.getuid() or there.st_mode & 0o170077 != 0o040000:
            raise MindBatchError(f"{folder}: must be a folder of this user that nobody else may enter")
        return cls(folder / sha256(f"{identity} {next(_numbers)}".encode()).hexdigest()[:32])

    @contextmanager
    def opened(self, coordinator: Coordinator) -> Iterator[None]:
        """Publishes the coordinator while the other copies come.

        Raises:
            MindBatchError: copy 0 of another job has published its own in this file.
        """
        if self._read() is not None:
            raise MindBatchError(
                "launch: another job on this host has the same launcher, address or rank table, and its "
                "processes are still coming; start this one when they have, or with another port or table"
            )
        host, port = coordinator.address
        content = {
            "address": [host, port],
            "key": coordinator.key.hex(),
            "process": _identity_of(os.getpid()),
        }
        write_whole(self.file, json.dumps(content).encode())
        try:
            yield
        finally:
            self.file.unlink(missing_ok=True)

    def wait(
        self,
        notice: Callable[[str], None],
        seconds: float = SECONDS,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Coordinator:
        """Waits for copy 0 and returns its `Coordinator`. notice: called meanwhile; a long wait is printed.

        Raises:
            MindBatchError: it has not come in all that time.
        """
        began, is_announced = time.monotonic(), False
        while (coordinator := self._read()) is None:
            notice("waiting for rank 0")
            waited = time.monotonic() - began
            if waited >= seconds:
                raise MindBatchError(
                    f"launch: rank 0 has not loaded this model in {seconds:.0f} s: {SAME_CALLS}"
                )
            if waited >= _QUIET_SECONDS and not is_announced:
                say("launch: waiting for rank 0 to load this model, too")
                is_announced = True
            sleep(_BETWEEN_LOOKS)
        return coordinator

    def _read(self) -> Coordinator | None:
        """Reads the file; None if it is missing or malformed, or copy 0 has ended."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            content = json.loads(read_regular(self.file, _MAX_BYTES))
            process, (host, port) = content["process"], content["address"]
            if process == _identity_of(process[0]):
                return Coordinator((str(host), int(port)), bytes.fromhex(content["key"]))
        return None


def _identity_of(process: int) -> list[int]:
    """Returns a process id and its start time (proc(5)): another process may get the same id."""
    fields = Path(f"/proc/{int(process)}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return [process, int(fields[19])]
