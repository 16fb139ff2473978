"""Ray actor that hosts a process of a job on a node of the cluster."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from mindbatch.io.children import command
from mindbatch.io.leftovers import TemporaryFolder
from mindbatch.launch.supervisor import EndedProcess, Supervisor

_TICK_SECONDS = 0.1


class RankHost:
    """Hosts processes on the node that Ray has chosen for it; they end when it does.

    logs: a folder for their logs, which is made where it is not there; None is a temporary one.
    """

    def __init__(self, logs: str | None) -> None:
        self._temporary = TemporaryFolder() if logs is None else None
        folder = Path(logs or "") if self._temporary is None else self._temporary.path
        folder.mkdir(parents=True, exist_ok=True)
        self._supervisor = Supervisor(folder)

    def start(self, name: str, program: tuple[str, str], variables: Mapping[str, str]) -> None:
        """Starts a function of this package, given by module and name, as a process.

        variables: of its environment, beside those of this process.

        Raises:
            MindBatchError: it cannot be started.
        """
        module, function = program
        called = command(getattr(import_module(module), function))
        self._supervisor.start(name, called, {**os.environ, **variables})

    def ended(self, seconds: float) -> list[EndedProcess]:
        """Lists ended processes that were not told yet, waiting for so long at most."""
        deadline = time.monotonic() + seconds
        while not (processes := self._supervisor.ended()) and time.monotonic() < deadline:
            time.sleep(_TICK_SECONDS)
        return processes

    def end(self) -> None:
        """Ends its processes; they are gone when it returns."""
        self._supervisor.end()
        if self._temporary is not None:
            self._temporary.remove()
