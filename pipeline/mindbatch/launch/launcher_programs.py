"""Programs of launchers, mpirun and msrun, which start an agent for each rank of a node."""

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from mindbatch.io import children
from mindbatch.io.errors import MindBatchError
from mindbatch.io.screen_text import say
from mindbatch.launch.free_ports import keep_on_this_host
from mindbatch.launch.process_plan import JOB_KEY, JobSetup, inherited
from mindbatch.launch.scripts.keeper import children_of, keep
from mindbatch.launch.supervisor import EndedProcess, Supervisor

_TICK_SECONDS = 0.1


def program_command(program: Sequence[str], folder: Path | None = None) -> list[str]:
    """The command, for `children.spawn`, that runs a program; its arguments arrive as they are.

    folder: that it runs in; None is this process's.

    The program ends with this process, and whatever it has started with it, in whatever sessions: an agent
    that is starting does not know yet that nobody waits for it.
    """
    return children.command(keep_private, str(folder or Path.cwd()), *program)


def keep_private(folder: str, *program: str) -> NoReturn:
    """Runs the program, which is looked up in PATH, and ends as it does; its files are for the owner only."""
    os.chdir(folder)
    os.umask(0o077)
    keep(*program)


@dataclass(frozen=True)
class Program:
    """A program to run. variables: beside those that it inherits.

    listens: at all addresses, though nobody on another host has to reach it.
    """

    name: str
    argv: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)
    listens: bool = False


_OPTIONS = {
    "OMPI_MCA_rmaps_base_oversubscribe": "1",  # agents need no core of their own
    "OMPI_MCA_hwloc_base_binding_policy": "none",  # ranks would inherit the one core of their agent
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",  # the same for OpenMPI 5
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}
_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def _mpirun(job: JobSetup, agent: Sequence[str]) -> Program:
    """mpirun on one node; the user starts mindbatch on each of several."""
    argv = ["mpirun", "-np", str(job.local_size), *agent]
    return Program("mpirun", argv, _OPTIONS | (_AS_ROOT if os.geteuid() == 0 else {}), listens=True)


_PYTHON = "python3"
_UNUSED_PORT = 8118
"""msrun wants one; nobody listens there, for replicas have schedulers of their own."""


def _msrun(job: JobSetup, agent: Sequence[str]) -> Program:
    """msrun 2.9. Without --join it ends at once, with exit code 0 whatever happens. Its logs go to the folder
    that it runs in: what it is given as --log_dir it would hand to a shell."""
    host, port = job.meeting
    argv = [
        "msrun",
        f"--worker_num={job.topology.world_size}",
        f"--local_worker_num={job.local_size}",
        f"--master_addr={host}",
        f"--master_port={port or _UNUSED_PORT}",
        f"--node_rank={job.node}",
        "--join=True",
        f"--tail_worker_log={job.topology.world_size}",  # of none: agents print nothing
        _PYTHON,
        *agent[1:],
    ]
    return Program("msrun", argv, with_our_python(os.environ))


PROGRAMS: dict[str, Callable[[JobSetup, Sequence[str]], Program]] = {"mpirun": _mpirun, "msrun": _msrun}
"""By launcher: the program that starts `agent`, a command, for each rank of a node. With the others mindbatch
starts the ranks itself, on each node that the user, Slurm or Ray starts."""

_ORIGINS = {"mpirun": "install OpenMPI", "msrun": "it comes with MindSpore"}


def launcher_errors(launcher: str) -> Iterator[str]:
    """Yields the reasons why a launcher cannot be used on this machine."""
    if launcher not in PROGRAMS:
        return
    if shutil.which(launcher, path=with_our_python(os.environ)["PATH"]) is None:
        yield (
            f"launch.launcher={launcher}: {launcher} is not on the PATH; {_ORIGINS[launcher]}, or use "
            "launch=dynamic"
        )
    own = Path(sys.executable).with_name(_PYTHON)
    if launcher == "msrun" and not (own.exists() and os.path.samefile(own, sys.executable)):
        yield (
            f"launch.launcher=msrun: msrun starts {_PYTHON} only, and {own} is not the Python that runs "
            f"here ({sys.executable}); use launch=dynamic"
        )


def with_our_python(environment: Mapping[str, str]) -> dict[str, str]:
    """PATH with this Python first: where a launcher looks `python3` up, it shall find the one that runs."""
    own = str(Path(sys.executable).parent)
    rest = [folder for folder in environment.get("PATH", os.defpath).split(os.pathsep) if folder != own]
    return {"PATH": os.pathsep.join([own, *rest])}


class StartedProgram:
    """The program of a launcher on this node. Raises MindBatchError if it cannot be started."""

    def __init__(self, job: JobSetup, agent: Sequence[str], logs: Path, *, shown: bool = False) -> None:
        program = PROGRAMS[job.launcher](job, agent)
        self._name, self._is_open = program.name, program.listens
        self._processes = Supervisor(logs, shown=shown)
        environment = inherited(os.environ) | dict(program.variables) | {JOB_KEY: job.key.hex()}
        self._processes.start(program.name, program_command(program.argv, logs), environment)

    def check(self) -> None:
        """Raises MindBatchError where it has ended."""
        for ended in self._ended():
            what = f"{ended.name} ended with {ended.how} before all ranks were started"
            raise MindBatchError([what, *ended.last_lines])

    def wait(self) -> None:
        """Until it has ended. Raises MindBatchError where it failed."""
        while not (ended := self._ended()):
            time.sleep(_TICK_SECONDS)
        if ended[0].how != "exit code 0":
            raise MindBatchError([f"{ended[0].name} ended with {ended[0].how}", *ended[0].last_lines])

    def end(self) -> None:
        self._processes.end()

    def _ended(self) -> list[EndedProcess]:
        """Lists it if it has ended; till then it is kept to this host, or the user told that it cannot be."""
        keeper = self._processes.process_id(self._name) if self._is_open else None
        processes = [] if keeper is None else [*children_of(keeper)]
        if not all(map(keep_on_this_host, processes)):
            self._is_open = False
            say(
                f"launch={self._name}: it listens at all addresses of this host, and this system does not "
                "let mindbatch change that; launch=dynamic listens at 127.0.0.1 alone"
            )
        return self._processes.ended()
