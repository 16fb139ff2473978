"""Program that msrun and mpirun start for each rank: an agent that serves that rank alone."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from mindbatch.io.errors import EXIT_DONE, EXIT_FAILED, MindBatchError
from mindbatch.io.screen_text import say
from mindbatch.launch.job_key import job_key
from mindbatch.launch.local_processes import LocalProcesses
from mindbatch.launch.started_as import started_as
from mindbatch.replicas.agent import patient_connection, serve


def main(text: str) -> int:
    """Serves one rank until the job is over; returns the exit code. text: see `start.launcher_program`."""
    try:
        copy = started_as(os.environ)
        if copy is not None and copy.is_scheduler:
            return EXIT_DONE
        todo = json.loads(text)
        os.chdir(todo["folder"])
        key = job_key(os.environ, is_shared=True)
        number = 0 if copy is None else copy.rank  # msrun counts through all nodes, mpirun on this one
        rank = number if copy is not None and copy.launcher == "msrun" else todo["first_rank"] + number
        return _serve(rank, key, todo)
    except (MindBatchError, OSError) as error:
        say(*(error.faults if isinstance(error, MindBatchError) else [str(error)]))
        return EXIT_FAILED


def _serve(rank: int, key: bytes, todo: dict[str, Any]) -> int:
    connection = patient_connection(tuple(todo["meeting"]), key)
    processes = LocalProcesses(todo["commands"], Path(todo["logs"]), has_tables=bool(todo["table"]))
    return serve(connection, processes, key, range(rank, rank + 1), todo["world_size"], todo["table"])
