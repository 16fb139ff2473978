"""Scalars for TensorBoard, written through tensorboardX."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mindbatch.errors import ConfigError

NEEDS_TENSORBOARDX = (
    "output.tensorboard=true: tensorboardX is not installed; install it, or leave the option out"
)


class EventFile:
    """One event file of a folder; each run makes its own, and TensorBoard shows them as one.

    tensorboardX's SummaryWriter is passed over: it writes in a thread, and when that one meets a full disk
    the program waits for it for ever. What lies under it writes at once, and says so when it cannot.
    """

    def __init__(self, folder: Path) -> None:
        """Raises ConfigError where tensorboardX is not installed; makes no file yet."""
        try:
            import tensorboardX.event_file_writer  # noqa: F401 (takes long to import, and few ask for it)
        except ImportError as error:
            raise ConfigError(NEEDS_TENSORBOARDX) from error
        self._folder = folder
        self._writer: Any = None

    def open(self) -> None:
        """Makes the folder and the file. Raises OSError."""
        from tensorboardX.event_file_writer import EventsWriter

        self._folder.mkdir(exist_ok=True)
        self._writer = EventsWriter(str(self._folder / "events"), f".{os.getpid()}")

    def add(self, values: Mapping[str, float], step: int, seconds: float) -> None:
        """Writes one event with all values, by name; `seconds` since 1970. Raises OSError."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._writer.write_event(Event(wall_time=seconds, step=step, summary=Summary(value=scalars)))
        self._writer.flush()

    def close(self) -> None:
        """Ends the file. Raises OSError."""
        if self._writer is not None:
            self._writer.close()
