"""The environment of a rank process: written by who starts it, read by the process itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from mindbatch.io.errors import ConfigError

Address = tuple[str, int]
KEY_BYTES = 32
_FRONT, _KEY, _RANK, _ATTEMPT = "MINDBATCH_FRONT", "MINDBATCH_JOB_KEY", "MINDBATCH_RANK", "MINDBATCH_ATTEMPT"


@dataclass(frozen=True)
class RankEnvironment:
    """Bootstrap settings of a rank process; it gets all others once it is connected.

    front: where the process listens that coordinates the job.
    key: of the job, 32 random bytes; whoever has it may take part. On no command line and in no log.
    rank: among all of the job.
    attempt: how often the rank's replica was started before.
    """

    front: Address
    key: bytes
    rank: int
    attempt: int = 0

    def variables(self) -> dict[str, str]:
        """Writes the settings as variables of a process's environment."""
        host, port = self.front
        return {
            _FRONT: f"{host}:{port}",
            _KEY: self.key.hex(),
            _RANK: str(self.rank),
            _ATTEMPT: str(self.attempt),
        }


@dataclass(frozen=True)
class ReplicaWorld:
    """The MindSpore world of one replica, for one of its ranks; a replica of one rank has none.

    scheduler: where the replica's scheduler process listens. size: its ranks. rank: local to the replica.
    role: MS_WORKER, or MS_SCHED for the scheduler process, which is none of the ranks.
    """

    scheduler: Address
    size: int
    rank: int = 0
    role: str = "MS_WORKER"

    def variables(self) -> dict[str, str]:
        """MindSpore's, of its dynamic cluster."""
        host, port = self.scheduler
        return {
            "MS_ROLE": self.role,
            "MS_SCHED_HOST": host,
            "MS_SCHED_PORT": str(port),
            "MS_WORKER_NUM": str(self.size),
            "MS_NODE_ID": str(self.rank) if self.role == "MS_WORKER" else "sched",
            "RANK_ID": str(self.rank),
            "RANK_SIZE": str(self.size),
        }


def take_rank_environment(variables: Mapping[str, str] | None = None) -> RankEnvironment:
    """Reads the settings and deletes the key from the process's own environment: its children need none.

    Raises:
        ConfigError: it was not started as a rank of a job.
    """
    source = os.environ if variables is None else variables
    try:
        host, _, port = source[_FRONT].rpartition(":")
        key = bytes.fromhex(source[_KEY])
        rank_environment = RankEnvironment(
            (host, int(port)), key, int(source[_RANK]), int(source.get(_ATTEMPT, "0"))
        )
    except (KeyError, ValueError):
        raise ConfigError(
            "this is a process of a MindBatch job and cannot be started alone: give `mindbatch` "
            "parallel.data_parallel and the like, and it starts the processes"
        ) from None
    if len(key) != KEY_BYTES or rank_environment.rank < 0:
        raise ConfigError(f"{_KEY}: must be {KEY_BYTES} bytes, {_RANK} at least 0")
    if variables is None:
        del os.environ[_KEY]
    return rank_environment
