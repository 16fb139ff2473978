"""The run's measurements over time: a JSON line every few seconds, and TensorBoard where it is asked for."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

import orjson

from mindbatch.regular_file import open_regular
from mindbatch.run.event_file import EventFile
from mindbatch.run.snapshot import Snapshot, rates_between
from mindbatch.screen_text import say
from mindbatch.storage import Storage

SAMPLE_SECONDS = 5.0


class MetricsLog:
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

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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
    """Whether a file of lines is empty or ends with a whole line."""
    with open(open_regular(path), "rb") as file:
        if file.seek(0, 2) == 0:
            return True
        file.seek(-1, 2)
        return file.read() == b"\n"
