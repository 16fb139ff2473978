"""The lock of a run's folder: one run at a time writes there; it is free again when its process has died."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
from datetime import datetime, timezone
from types import TracebackType

import orjson

from mindbatch.io.errors import ConfigError
from mindbatch.io.regular_file import first_bytes, open_regular
from mindbatch.io.storage import Storage, StorageError
from mindbatch.ledger.run_folder import RunFolder

_MAX_HOLDER_BYTES = 4096
_HELD = {errno.EAGAIN, errno.EACCES}


class RunLock:
    """Holds the folder's lock within `with`: flock on a file that is never removed.

    The system gives it back when the process ends, however it ends; a child made by fork alone shares it.
    ConfigError, saying who has it, when another run holds it; StorageError when the file cannot be written.
    """

    def __init__(self, folder: RunFolder, storage: Storage | None = None) -> None:
        self._folder = folder
        self._storage = storage or Storage()
        self._file: int | None = None

    def __enter__(self) -> RunLock:
        try:
            self._file = self._taken()
            self._storage.truncate(self._file, 0)
            self._storage.write(self._file, _describe_this_process())
        except OSError as error:
            self.release()
            raise StorageError.writing(self._folder.lock, error) from error
        except BaseException:
            self.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Gives the lock back; a second time does nothing."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _taken(self) -> int:
        """The file, locked; it is taken anew if it lost its name meanwhile: a refused run tidies up."""
        while True:
            file = self._storage.append(self._folder.lock)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(file), self._folder.lock.stat()):
                    return file
            except OSError as error:
                os.close(file)
                if error.errno not in _HELD:
                    raise
                holder = _describe_holder(self._folder)
                raise ConfigError(f"{self._folder.path}: another run is writing here{holder}") from None
            os.close(file)


def is_running(folder: RunFolder) -> bool:
    """True if a run holds the folder's lock now; False if that cannot be checked."""
    try:
        file = open_regular(folder.lock)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in _HELD
    finally:
        os.close(file)
    return False


def _describe_this_process() -> bytes:
    since = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return orjson.dumps({"process": os.getpid(), "host": platform.node(), "since": since}) + b"\n"


def _describe_holder(folder: RunFolder) -> str:
    """` (process 123 on HOST since TIME)`, or nothing when its note cannot be read."""
    try:
        note = orjson.loads(first_bytes(folder.lock, _MAX_HOLDER_BYTES))
    except (OSError, orjson.JSONDecodeError):
        return ""
    match note:
        case {"process": int(process), "host": str(host), "since": str(since)}:
            return f" (process {process} on {ascii(host)[1:-1]} since {ascii(since)[1:-1]})"
    return ""
