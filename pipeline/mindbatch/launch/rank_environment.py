"""The environment of a rank process: written by who starts it, read by the process itself."""

import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from mindbatch.io.errors import ConfigError
from mindbatch.io.screen_text import hide

Address = tuple[str, int]
KEY_BYTES = 32
JOB_KEY = "MINDBATCH_JOB_KEY"  # a variable, as those below
HIDDEN = "(hidden)"
_FRONT, _RANK, _ATTEMPT = "MINDBATCH_FRONT", "MINDBATCH_RANK", "MINDBATCH_ATTEMPT"
_KEY = re.compile(rf"[0-9a-fA-F]{{{2 * KEY_BYTES}}}")
_HOW = "export MINDBATCH_JOB_KEY=$(openssl rand -hex 32) once, and give it to every node"


def job_key(environment: Mapping[str, str], *, is_shared: bool) -> bytes:
    """The key of a job. It is never on a command line, in a file of a run, or in a message.

    is_shared: there are other nodes, which must have the same; a job on one node makes its own.

    Raises:
        ConfigError: a shared one is not set, or it is no key.
    """
    if not is_shared:
        return secrets.token_bytes(KEY_BYTES)
    text = environment.get(JOB_KEY, "")
    if text:
        hide(text, HIDDEN)
    if not _KEY.fullmatch(text):
        what = "is not a key" if text else "is not set"
        raise ConfigError(
            f"{JOB_KEY} {what}: the nodes of a job know each other by {2 * KEY_BYTES} hexadecimal digits "
            f"that nobody else has; {_HOW}"
        )
    return bytes.fromhex(text)


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
        host, port = self.front
        return {
            _FRONT: f"{host}:{port}",
            JOB_KEY: self.key.hex(),
            _RANK: str(self.rank),
            _ATTEMPT: str(self.attempt),
        }


def world_variables(scheduler: Address, size: int, rank: int | None = None) -> dict[str, str]:
    """MindSpore's variables of its dynamic cluster, the world of one replica; a replica of one rank has none.

    scheduler: where the replica's scheduler process listens. size: its ranks.
    rank: local to the replica; None is the scheduler process, which is none of the ranks.
    """
    host, port = scheduler
    return {
        "MS_ROLE": "MS_SCHED" if rank is None else "MS_WORKER",
        "MS_SCHED_HOST": host,
        "MS_SCHED_PORT": str(port),
        "MS_WORKER_NUM": str(size),
        "MS_NODE_ID": "sched" if rank is None else str(rank),
        "RANK_ID": str(rank or 0),
        "RANK_SIZE": str(size),
    }


def take_rank_environment(variables: Mapping[str, str] | None = None) -> RankEnvironment:
    """Reads the settings and deletes the key from the process's own environment: its children need none.

    Raises:
        ConfigError: it was not started as a rank of a job.
    """
    source = os.environ if variables is None else variables
    try:
        host, _, port = source[_FRONT].rpartition(":")
        key = bytes.fromhex(source[JOB_KEY])
        rank_environment = RankEnvironment(
            (host, int(port)), key, int(source[_RANK]), int(source.get(_ATTEMPT, "0"))
        )
    except (KeyError, ValueError):
        raise ConfigError(
            "this is a process of a MindBatch job and cannot be started alone: give `mindbatch` "
            "parallel.data_parallel and the like, and it starts the processes"
        ) from None
    if len(key) != KEY_BYTES or rank_environment.rank < 0:
        raise ConfigError(f"{JOB_KEY}: must be {KEY_BYTES} bytes, {_RANK} at least 0")
    if variables is None:
        del os.environ[JOB_KEY]
    return rank_environment
