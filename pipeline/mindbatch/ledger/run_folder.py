"""A run's folder: its layout, its beginning and clearing, and the lock, which one run at a time has."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import orjson

from mindbatch.io.closing import Closing
from mindbatch.io.errors import ConfigError, MindBatchError, passing_error
from mindbatch.io.regular_file import check_own, first_bytes, open_regular
from mindbatch.io.storage import (
    Storage,
    StorageError,
    is_still,
    lock,
    make_durable,
    reason_of,
    remove_leftovers,
    writing,
)

RESULT_NAMES = {
    "jsonl": "results.jsonl",
    "openai": "results.jsonl",
    "parquet": "results.parquet",
    "csv": "results.csv",
}


class _File:
    """Path of a file or folder in the folder of a run."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: RunFolder, owner: type[RunFolder]) -> Path:
        return folder.path / self._name


@dataclass(frozen=True)
class RunFolder:
    """Paths of a run's files, which are neither created nor checked."""

    path: Path

    run_file = _File("run.json")  # the run record; a folder without one is no run's
    config_file = _File("config.yaml")
    lock = _File("lock")  # locked by the run that writes here
    ledger = _File("ledger.jsonl")  # the rows that have ended; absent before the first
    errors = _File("errors.jsonl")  # the rows that failed, in input order
    manifest = _File("manifest.json")  # what the finished run was made from, and its counts
    metrics = _File("metrics.jsonl")  # samples taken while it ran
    logs = _File("logs")  # the folder of the logs of other processes, where the run has any
    index = _File(".index.sqlite")  # the rows of a run in progress; made anew by each session
    standard_input = _File("input.spool")  # a copy, kept so that the run can be resumed

    def results(self, format: str) -> Path:
        """Returns the finished results in the format: jsonl, openai, parquet or csv."""
        return self.path / RESULT_NAMES[format]

    @property
    def holds_a_run(self) -> bool:
        return self.run_file.is_file()

    @property
    def is_without_rows(self) -> bool:
        """True if no row was ever finished here, as when the model turned out to be damaged."""
        return not self.ledger.exists() or not self.ledger.stat().st_size

    def make(self, storage: Storage) -> None:
        """Makes the folder, if it is not there, so that a power cut does not undo it.

        ConfigError when the path is something else, or a folder with things in it that are no run;
        StorageError when it cannot be made.
        """
        self._check()
        with writing(self.path):
            make_durable(self.path, storage)

    def _check(self) -> None:
        if not os.path.lexists(self.path):
            return
        if not self.path.is_dir():
            raise ConfigError(f"output.dir={self.path}: not a folder")
        self._refuse_special()
        if self.holds_a_run:
            return
        strangers = sorted({entry.name for entry in self.path.iterdir()} - self._names_before_the_record())
        if strangers:
            raise ConfigError(
                f"output.dir={self.path}: has {strangers[0]} in it but no run; give a new or empty folder"
            )

    def _refuse_special(self) -> None:
        """ConfigError when something else than a file has the name of one of ours, or than a folder."""
        errors = []
        for path in self._files():
            try:
                check_own(path)
            except OSError as error:
                if passing_error(error) is not None:
                    raise StorageError.reading(path, error) from error
                errors.append(f"{path}: must be a file of the run's own ({reason_of(error)}); move it away")
        if self.logs.is_symlink() or (self.logs.exists() and not self.logs.is_dir()):
            errors.append(f"{self.logs}: must be a folder of the run's own; move it away")
        if errors:
            raise ConfigError(errors)

    def _files(self) -> set[Path]:
        results = {self.results(format) for format in RESULT_NAMES}
        others = {self.errors, self.manifest, self.metrics, self.config_file, self.standard_input}
        return results | others | {self.run_file, self.ledger, self.lock, self.index}

    def _names_before_the_record(self) -> set[str]:
        """Lists names that a run killed before it wrote its record may have left."""
        hidden = {entry.name for entry in self.path.glob(".*")}
        return hidden | {path.name for path in (self.lock, self.standard_input, self.config_file)}

    def remove_leftovers(self, storage: Storage) -> None:
        """Removes half-written files of killed sessions. Only under the lock. Raises StorageError."""
        ours = {path.name for path in self._files()}
        remove_leftovers(self.path, storage, ours.__contains__)

    def clear(self, storage: Storage, keep: Collection[Path] = ()) -> None:
        """Removes what a run has written, except its record, the lock and `keep`; only under the lock.

        The record stays, so that a kill in between leaves a run that lost rows, never rows without a record;
        when this returns no power cut brings a row back, and a new record may be written over the old one.
        Raises StorageError.
        """
        kept = {self.run_file, self.ledger, self.lock, self.index, *keep}
        with writing(self.path):
            for paths in (sorted(self._files() - kept), [self.ledger]):
                for path in paths:
                    if path.exists():
                        storage.remove(path)
                storage.sync_folder(self.path)

    def remove_results(self, names: Collection[str], storage: Storage) -> list[str]:
        """Removes those result files of the run that are there; returns their names. Raises StorageError."""
        present = sorted(name for name in names if (self.path / name).is_file())
        with writing(self.path):
            for name in present:
                storage.remove(self.path / name)
            if present:
                storage.sync_folder(self.path)
        return present


_MAX_HOLDER_BYTES = 4096
_LOOK_SECONDS = 0.01
"""Time between two attempts at a lock that another process shares, to see whether a run has it."""
_LOCK_ATTEMPTS = 1000


class RunLock(Closing):
    """The folder's lock, until it is closed: flock on a file that is never removed.

    The system releases it when the process ends; a child made by fork alone shares it. Raises ConfigError,
    with the holder, if another run holds it; StorageError if the file cannot be written.
    """

    def __init__(self, folder: RunFolder, storage: Storage | None = None) -> None:
        storage = storage or Storage()
        self._file: int | None = None
        try:
            with writing(folder.lock):
                self._file = _locked(folder, storage)
                storage.truncate(self._file, 0)
                since = datetime.now(timezone.utc).isoformat(timespec="seconds")
                note = {"process": os.getpid(), "host": platform.node(), "since": since}
                storage.write(self._file, orjson.dumps(note) + b"\n")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


def _locked(folder: RunFolder, storage: Storage) -> int:
    """Opens and locks the file; again if it lost its name meanwhile, as a refused run removes it, and while
    `is_running` looks at it."""
    for _ in range(_LOCK_ATTEMPTS):
        file = storage.append(folder.lock)
        try:
            if lock(file):
                if is_still(file, folder.lock):
                    return file
            elif not lock(file, shared=True):  # a run has it, and not those who look, who share it
                holder = _describe_holder(folder)
                raise ConfigError(f"{folder.path}: another run is writing here{holder}")
        except BaseException:
            os.close(file)
            raise
        os.close(file)
        time.sleep(_LOOK_SECONDS)
    raise ConfigError(f"{folder.lock}: a process that writes no run here keeps it locked; end that process")


@contextmanager
def claimed(folder: RunFolder, storage: Storage) -> Iterator[None]:
    """Locks the folder for this run; removes a folder that was created for a run which is then refused.

    Raises:
        ConfigError: another run is writing there, or the folder is not a run's.
    """
    created = [path for path in (folder.path, *folder.path.parents) if not path.exists()]
    folder.make(storage)
    with RunLock(folder, storage):
        folder.remove_leftovers(storage)
        try:
            yield
        except MindBatchError:
            if created and not folder.holds_a_run:
                _remove_empty(folder, created)
            raise


def _remove_empty(folder: RunFolder, created: list[Path]) -> None:
    folder.lock.unlink(missing_ok=True)
    for path in created:
        try:
            path.rmdir()
        except OSError:  # something is in it after all
            return


def is_running(folder: RunFolder) -> bool:
    """True if a run holds the folder's lock now; False if that cannot be checked.

    It shares the lock for a moment, for which a run that begins then waits.
    """
    try:
        file = open_regular(folder.lock)
    except OSError:
        return False
    try:
        return not lock(file, shared=True)
    except OSError:
        return False
    finally:
        os.close(file)


def locked_since(folder: RunFolder) -> float | None:
    """Returns when the folder was locked last, in seconds since 1970, to the second; None if unknown."""
    try:
        return datetime.fromisoformat(_holder(folder)["since"]).timestamp()
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _describe_holder(folder: RunFolder) -> str:
    """` (process 123 on HOST since TIME)`, or nothing when its note cannot be read."""
    match _holder(folder):
        case {"process": int(process), "host": str(host), "since": str(since)}:
            return f" (process {process} on {ascii(host)[1:-1]} since {ascii(since)[1:-1]})"
    return ""


def _holder(folder: RunFolder) -> dict[str, Any]:
    """Reads the note of the run that locked the folder last; empty if it cannot be read."""
    try:
        note = orjson.loads(first_bytes(folder.lock, _MAX_HOLDER_BYTES))
    except (OSError, orjson.JSONDecodeError):
        return {}
    return note if isinstance(note, dict) else {}
