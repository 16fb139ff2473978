"""Launcher: the program that starts agents for a node's ranks; none where mindbatch does it."""

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from mindbatch.launch.process_plan import JobSetup


@dataclass(frozen=True)
class Program:
    """A program to run. variables: beside those that it inherits.

    listens: at all addresses, though nobody on another host has to reach it.
    """

    name: str
    argv: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)
    listens: bool = False


class Starter(Protocol):
    def faults(self) -> Iterator[str]:
        """Yields the reasons why it cannot be used on this machine."""
        ...

    def program(self, job: JobSetup, agent: Sequence[str]) -> Program | None:
        """The program that starts `agent`, a command, once for each rank of the node; None: there is none."""
        ...


class OwnStarter:
    """mindbatch starts the processes of a node itself."""

    def faults(self) -> Iterator[str]:
        return iter(())

    def program(self, job: JobSetup, agent: Sequence[str]) -> Program | None:
        return None


def missing_program(name: str, launcher: str, remedy: str) -> Iterator[str]:
    if shutil.which(name, path=with_our_python(os.environ)["PATH"]) is None:
        yield f"launch.launcher={launcher}: {name} is not on the PATH; {remedy}, or use launch=dynamic"


def with_our_python(environment: Mapping[str, str]) -> dict[str, str]:
    """PATH with this Python first: where a launcher looks `python3` up, it shall find the one that runs."""
    own = str(Path(sys.executable).parent)
    rest = [folder for folder in environment.get("PATH", os.defpath).split(os.pathsep) if folder != own]
    return {"PATH": os.pathsep.join([own, *rest])}


_OPTIONS = {
    "OMPI_MCA_rmaps_base_oversubscribe": "1",  # agents need no core of their own
    "OMPI_MCA_hwloc_base_binding_policy": "none",  # ranks would inherit the one core of their agent
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",  # the same for OpenMPI 5
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}
_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


class Mpirun:
    """mpirun on one node; the user starts mindbatch on each of several."""

    def faults(self) -> Iterator[str]:
        yield from missing_program("mpirun", "mpirun", "install OpenMPI")

    def program(self, job: JobSetup, agent: Sequence[str]) -> Program | None:
        argv = ["mpirun", "-np", str(job.local_size), *agent]
        return Program("mpirun", argv, _OPTIONS | (_AS_ROOT if os.geteuid() == 0 else {}), listens=True)


_PYTHON = "python3"
_UNUSED_PORT = 8118
"""msrun wants one; nobody listens there, for replicas have schedulers of their own."""


class Msrun:
    """msrun 2.9. Without --join it ends at once, with exit code 0 whatever happens. Its logs go to the folder
    that it runs in: what it is given as --log_dir it would hand to a shell."""

    def faults(self) -> Iterator[str]:
        yield from missing_program("msrun", "msrun", "it comes with MindSpore")
        own = Path(sys.executable).with_name(_PYTHON)
        if not own.exists() or not os.path.samefile(own, sys.executable):
            yield (
                f"launch.launcher=msrun: msrun starts {_PYTHON} only, and {own} is not the Python that runs "
                f"here ({sys.executable}); use launch=dynamic"
            )

    def program(self, job: JobSetup, agent: Sequence[str]) -> Program | None:
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


STARTERS: dict[str, Starter] = {
    "dynamic": OwnStarter(),
    "rank_table": OwnStarter(),  # what each rank is told differs, not who starts it
    "srun": OwnStarter(),  # Slurm has started this process, which is one node
    "ray": OwnStarter(),  # of the schedulers; Ray's actors start the ranks
    "msrun": Msrun(),
    "mpirun": Mpirun(),
}
