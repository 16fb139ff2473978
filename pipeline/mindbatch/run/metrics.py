"""Measurements of a run over time: counts, rates, and their file, a JSON line every few seconds."""

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson

from mindbatch.io.amounts import per_second
from mindbatch.io.closing import Closing
from mindbatch.io.regular_file import open_regular
from mindbatch.io.screen_text import say
from mindbatch.io.storage import Storage

SAMPLES_PER_WINDOW = 20


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The counts of a run at one moment.

    seconds: since the run started.
    rows_total, rows_done, rows_failed: all rows; those with a result, and those with an error, what earlier
        runs of the same job did included.
    prompt_tokens, cached_prompt_tokens, generated_tokens: tokens of this run: of prompts, of prompts found in
        the cache, and generated.
    running: running sequences. waiting: rows that are queued in the engine.
    cache_used: share of the cache's blocks in use, 0 to 1.
    preemptions: number of pre-emptions of sequences in this run.
    """

    seconds: float
    rows_total: int
    rows_done: int = 0
    rows_failed: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    generated_tokens: int = 0
    running: int = 0
    waiting: int = 0
    cache_used: float = 0.0
    preemptions: int = 0

    @property
    def rows_ended(self) -> int:
        """Rows that nothing is left to do for, done or failed."""
        return self.rows_done + self.rows_failed

    @property
    def prefix_hits(self) -> float:
        """Share of the prompts' tokens that were found in the cache, 0 to 1."""
        return self.cached_prompt_tokens / max(self.prompt_tokens, 1)


@dataclass(frozen=True)
class Rates:
    """Speed of a run: tokens and rows per second."""

    prompt_tokens: float = 0.0
    generated_tokens: float = 0.0
    rows: float = 0.0


class RateMeter:
    """The rates over the last `window` seconds; over the whole run while it is younger than that.

    It keeps a few samples of the window whatever the number of snapshots.
    """

    def __init__(self, window: float = 10.0) -> None:
        self._window = window
        self._samples: deque[Snapshot] = deque()

    def rates(self, now: Snapshot) -> Rates:
        """Takes the newest snapshot; returns the rates up to it. The first one starts the measurement."""
        samples = self._samples
        while len(samples) > 1 and samples[1].seconds <= now.seconds - self._window:
            samples.popleft()
        if not samples or now.seconds - samples[-1].seconds >= self._window / SAMPLES_PER_WINDOW:
            samples.append(now)
        return rates_between(samples[0], now)


def rates_between(start: Snapshot, end: Snapshot) -> Rates:
    """Returns the mean rates from one moment to another; nothing where no time has passed."""
    seconds = end.seconds - start.seconds
    return Rates(
        prompt_tokens=per_second(end.prompt_tokens - start.prompt_tokens, seconds),
        generated_tokens=per_second(end.generated_tokens - start.generated_tokens, seconds),
        rows=per_second(end.rows_ended - start.rows_ended, seconds),
    )


SAMPLE_SECONDS = 5.0


class MetricsLog(Closing):
    """Appends samples to a file, in a `with` or until `close`. A resumed run goes on in the same file.

    Each line has the time (seconds since 1970), the fields of the snapshot, and tokens and rows per second
    since the line before it. Losing measurements does not end a run: if they cannot be written, that is said
    once on standard error.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        """clock: returns the seconds since 1970."""
        self._path = path
        self._clock = clock
        self._storage = Storage()
        self._latest: Snapshot | None = None
        self._written: Snapshot | None = None
        self._is_lost = False

    def sample(self, snapshot: Snapshot) -> None:
        """Takes the newest counts; may be called after every step, and writes when it is time."""
        self._latest = snapshot
        if self._written is None or snapshot.seconds - self._written.seconds >= SAMPLE_SECONDS:
            self._write(snapshot)

    def close(self) -> None:
        """Writes the last counts."""
        if self._latest is not None and self._latest != self._written:
            self._write(self._latest)

    def _write(self, snapshot: Snapshot) -> None:
        rates = rates_between(self._written or snapshot, snapshot)
        self._written = snapshot
        values = dataclasses.asdict(snapshot)
        values |= {f"{name}_per_second": rate for name, rate in dataclasses.asdict(rates).items()}
        if self._is_lost:
            return
        now = round(self._clock(), 3)
        try:
            self._append(orjson.dumps({"time": now, **values}, option=orjson.OPT_APPEND_NEWLINE))
        except OSError as error:
            self._is_lost = True
            say(f"{self._path}: no more metrics are written ({error.strerror or error})")

    def _append(self, line: bytes) -> None:
        file = self._storage.append(self._path)
        try:
            if not _ends_whole(self._path):  # a run was killed amid a line: the next one stays whole
                self._storage.write(file, b"\n")
            self._storage.write(file, line)
        finally:
            self._storage.close(file)


def _ends_whole(path: Path) -> bool:
    """True if a file of lines is empty or ends with a whole line."""
    with open(open_regular(path), "rb") as file:
        if file.seek(0, 2) == 0:
            return True
        file.seek(-1, 2)
        return file.read() == b"\n"


_TAIL_BYTES = 1 << 16
_MAX_LINE_BYTES = 1 << 16
_MAX_VALUE = 1e15
_COUNTS = tuple(field.name for field in dataclasses.fields(Snapshot) if field.type in (int, "int"))


def last_samples(path: Path) -> list[tuple[float, Snapshot]]:
    """Reads the last samples of a file of metrics, about a quarter of an hour: each with its time, in seconds
    since 1970. Empty if there is no such file."""
    return [*read_samples(path, _TAIL_BYTES)]


def read_samples(path: Path, tail_bytes: int | None = None) -> Iterator[tuple[float, Snapshot]]:
    """Yields the samples of a file of metrics with their times; lines that are none are skipped.

    tail_bytes: how much of its end is read; None reads all.
    """
    try:
        file = open(open_regular(path), "rb")  # noqa: SIM115
    except OSError:
        return
    with file:
        end = file.seek(0, 2)
        start = 0 if tail_bytes is None else max(0, end - tail_bytes)
        file.seek(start)
        for line in iter(lambda: file.readline(_MAX_LINE_BYTES), b""):
            sample = _sample_of(line)
            if sample is not None:
                yield sample


def _sample_of(line: bytes) -> tuple[float, Snapshot] | None:
    try:
        content = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(content, dict):
        return None
    time, seconds, cache_used = (_number(content, name) for name in ("time", "seconds", "cache_used"))
    counts = {name: int(_number(content, name) or 0) for name in _COUNTS}
    if time is None or seconds is None or _number(content, "rows_total") is None:
        return None
    return time, Snapshot(seconds=seconds, cache_used=cache_used or 0.0, **counts)


def _number(content: Mapping[str, object], name: str) -> float | None:
    """Returns a value that is a number from 0 to _MAX_VALUE; None for any other."""
    value = content.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MAX_VALUE
    return value if is_number else None  # type: ignore[return-value]
