"""launch=mpirun: OpenMPI starts an agent for each rank of the node; no message goes through MPI."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from mindbatch.launch.node_place import NodePlace
from mindbatch.launch.starters.starter import Program, missing_program

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

    def program(self, place: NodePlace, agent: Sequence[str]) -> Program | None:
        argv = ["mpirun", "-np", str(place.layout.local_size), *agent]
        return Program("mpirun", argv, _OPTIONS | (_AS_ROOT if os.geteuid() == 0 else {}), listens=True)
