"""The launchers by name."""

from __future__ import annotations

from mindbatch.launch.starters.mpirun import Mpirun
from mindbatch.launch.starters.msrun import Msrun
from mindbatch.launch.starters.starter import OwnStarter, Starter

STARTERS: dict[str, Starter] = {
    "dynamic": OwnStarter(),
    "rank_table": OwnStarter(),  # what each rank is told differs, not who starts it
    "srun": OwnStarter(),  # Slurm has started this process, which is one node
    "ray": OwnStarter(),  # of the schedulers; Ray's actors start the ranks
    "msrun": Msrun(),
    "mpirun": Mpirun(),
}
