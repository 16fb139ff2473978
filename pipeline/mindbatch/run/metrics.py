"""The run's measurements over time: a JSON line every few seconds, and TensorBoard where it is asked for."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson

from mindbatch.io.closing import Closing
from mindbatch.io.errors import ConfigError
from mindbatch.io.regular_file import open_regular
from mindbatch.io.screen_text import say
from mindbatch.io.storage import Storage
from mindbatch.run.snapshot import Snapshot, rates_between

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


SAMPLE_SECONDS = 5.0


class MetricsLog(Closing):
    """Appends samples to a file, in a `with` or until `close`. A resumed run goes on in the same file.

    Each line has the time (seconds since 1970), the fields of the snapshot, and tokens and rows per second
    since the line before it. Losing measurements does not end a run: if they cannot be written, that is said
    once on standard error.
    """

    def __init__(
        self,
        path: Path,
        tensorboard: Path | None = None,
        every: float = SAMPLE_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """tensorboard: folder of TensorBoard's event files; None writes none. There a sample's step is the
        number of rows that had ended, so that the curves of a resumed run join. every: seconds between
        samples. clock: seconds since 1970.

        Raises:
            ConfigError: TensorBoard is asked for and tensorboardX is not installed.
        """
        self._path = path
        self._every = every
        self._clock = clock
        self._storage = Storage()
        self._file: int | None = None
        self._latest: Snapshot | None = None
        self._written: Snapshot | None = None
        self._events = None if tensorboard is None else EventFile(tensorboard)
        self._attempt(self._open)

    def sample(self, snapshot: Snapshot) -> None:
        """Takes the newest counts; may be called after every step, and writes when it is time."""
        self._latest = snapshot
        if self._written is None or snapshot.seconds - self._written.seconds >= self._every:
            self._write(snapshot)

    def close(self) -> None:
        """Writes the last counts, and ends the files."""
        if self._latest is not None and self._latest != self._written:
            self._write(self._latest)
        self._attempt(self._close)

    def _write(self, snapshot: Snapshot) -> None:
        rates = rates_between(self._written or snapshot, snapshot)
        self._written = snapshot
        values = dataclasses.asdict(snapshot)
        values |= {f"{name}_per_second": rate for name, rate in dataclasses.asdict(rates).items()}
        self._attempt(lambda: self._append(values, snapshot.rows_ended, round(self._clock(), 3)))

    def _open(self) -> None:
        self._file = self._storage.append(self._path)
        if not _ends_whole(self._path):
            self._storage.write(self._file, b"\n")  # a run was killed amid a line: the next one stays whole
        if self._events is not None:
            self._events.open()

    def _append(self, values: Mapping[str, float], step: int, now: float) -> None:
        if self._file is None:
            return
        line = orjson.dumps({"time": now, **values}, option=orjson.OPT_APPEND_NEWLINE)
        self._storage.write(self._file, line)
        if self._events is not None:
            self._events.add(values, step, now)

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        self._storage.close(file)
        if self._events is not None:
            self._events.close()

    def _attempt(self, action: Callable[[], None]) -> None:
        """Does it, or says that there will be no more metrics and why."""
        try:
            action()
        except OSError as error:
            self._give_up()
            reason = error.strerror or error
            say(f"{self._path}: no more metrics are written ({reason})")

    def _give_up(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            self._storage.close(file)


def _ends_whole(path: Path) -> bool:
    """True if a file of lines is empty or ends with a whole line."""
    with open(open_regular(path), "rb") as file:
        if file.seek(0, 2) == 0:
            return True
        file.seek(-1, 2)
        return file.read() == b"\n"
