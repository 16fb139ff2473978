"""launch=msrun: MindSpore's launcher starts an agent for each rank, and knows nothing else of the job."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from mindbatch.launch.node_place import NodePlace
from mindbatch.launch.starters.starter import Program, missing_program, with_our_python

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

    def program(self, place: NodePlace, agent: Sequence[str]) -> Program | None:
        host, port = place.meeting
        argv = [
            "msrun",
            f"--worker_num={place.layout.topology.world_size}",
            f"--local_worker_num={place.layout.local_size}",
            f"--master_addr={host}",
            f"--master_port={port or _UNUSED_PORT}",
            f"--node_rank={place.node}",
            "--join=True",
            f"--tail_worker_log={place.layout.topology.world_size}",  # of none: agents print nothing
            _PYTHON,
            *agent[1:],
        ]
        return Program("msrun", argv, with_our_python(os.environ))
