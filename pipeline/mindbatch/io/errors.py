"""The exceptions that reach a user, each with its exit code.

Exit code 1 is a verdict: rows that failed, runs that differ, a model that is damaged. A command that ended
before it had done its work, by a full disk or a lost process, has another: it may succeed if it is run again.
"""

import errno
from collections.abc import Iterable

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNFINISHED = 75
"""EX_TEMPFAIL of sysexits.h, by which schedulers and scripts know what to run again."""

EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class MindBatchError(Exception):
    """One or more errors, each a line that names what was found, where, and what is allowed."""

    exit_code = EXIT_UNFINISHED

    def __init__(self, errors: str | Iterable[str]) -> None:
        self.lines: tuple[str, ...] = (errors,) if isinstance(errors, str) else tuple(errors)
        super().__init__("\n".join(self.lines))


class ConfigError(MindBatchError):
    """Wrong usage or configuration; found before anything costly starts."""

    exit_code = EXIT_USAGE


class CheckpointError(MindBatchError):
    """A model folder or weight file that is damaged, unsafe or does not fit the model."""

    exit_code = EXIT_FAILED


class BackendError(MindBatchError):
    """MindSpore, MindFormers or MPI lacks what it needs, or one of their processes failed."""

    exit_code = EXIT_FAILED


class OutputError(MindBatchError):
    """Standard output is full, closed or broken."""


class RankError(MindBatchError):
    """A process of a distributed job has ended, failed or hangs; what was finished before is safe."""


class PromptError(MindBatchError):
    """A prompt that cannot be run; the other rows are not affected."""

    exit_code = EXIT_FAILED


class CacheBudgetError(PromptError):
    """A request whose keys and values can never fit the cache budget."""


def is_unfinished(error: BaseException) -> bool:
    """True if an error is not the command's own, so that the same command may succeed later."""
    return getattr(error, "exit_code", EXIT_UNFINISHED) == EXIT_UNFINISHED


def is_panic(error: BaseException) -> bool:
    """True if a library in Rust panicked: what it raises then has no name to import, and is no Exception."""
    return type(error).__name__ == "PanicException"


_PASSING = frozenset(
    (
        *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN),
        *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EROFS),
    )
)
"""Errors of a system without free memory, space or descriptors, or whose disk does not respond."""


def passing_error(error: BaseException | None) -> OSError | None:
    """Returns the system's error that caused an error, if waiting may resolve it; None for other errors."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _PASSING:
            return error
        error = error.__cause__ or error.__context__
    return None
