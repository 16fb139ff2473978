"""Bounds of time, memory and files, progress and error lines of child processes that use a network."""

import errno
import json
import os
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from mindbatch.hub.listings import Refused
from mindbatch.io.child_main import limit

TOKENS = {"huggingface": "HF_TOKEN", "modelscope": "MODELSCOPE_API_TOKEN"}
"""The variable with a hub's token."""
_REPORT_SECONDS = 0.5
_SPARE_BYTES = 1 << 20
_MEMORY_BYTES = 512 << 20

Values = dict[str, Any]
Reason = Callable[[Exception, Values], tuple[str, bool]]
"""Returns one line on an exception during a request, and True if trying again does not help."""


def answer(
    connection: Connection,
    request: str,
    work: Callable[[Any, Connection, Values], object],
    reason: Reason,
    memory_bytes: int = _MEMORY_BYTES,
) -> None:
    """Runs `work` for a request, a JSON object; `work` gets the function that sends fields as JSON objects.

    In case of an error it sends `error`, a line, and `lasts`, true if trying again does not help.
    """

    def send(**fields: Any) -> None:
        connection.send_bytes(json.dumps(fields).encode())

    values: Values = json.loads(request)
    limit(resource.RLIMIT_AS, memory_bytes)
    limit(resource.RLIMIT_CORE, 0)
    try:
        work(send, connection, values)
    except Refused as refused:
        send(error=str(refused), lasts=refused.lasts)
    except EOFError:  # nobody wants it any more
        pass
    except MemoryError:
        send(error=f"the answer takes more than {memory_bytes >> 20} MiB, and was given up")
    except Exception as error:
        line, lasts = reason(error, values)
        send(error=line, lasts=lasts)


def limit_files(max_bytes: int) -> None:
    """Limits the size of files, so that a server that sends more than it announced cannot fill the disk."""
    max_bytes += _SPARE_BYTES
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    soft = max_bytes if hard == resource.RLIM_INFINITY else min(max_bytes, hard)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def deadline(seconds: float, description: str) -> Iterator[None]:
    """Bounds the time of a block: a server may send a byte now and then without end."""

    def late(*_: object) -> None:
        raise Refused(f"{description} was not there after {seconds:g} seconds")

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@contextmanager
def reporting(send: Any, home: Path) -> Iterator[None]:
    """Sends now and then the number of bytes on the disk."""
    over = threading.Event()

    def report() -> None:
        while not over.wait(_REPORT_SECONDS):
            send(bytes=_bytes_in(home))

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += 0 if path.is_symlink() or path.is_dir() else path.stat().st_size
    return total


def write(path: Path, text: str) -> None:
    """Writes a file that appears whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(text)
    partial.replace(path)


def first_cause(error: BaseException) -> str:
    """The words of the system, below all that libraries have put around them."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__


_GATED = ("GatedRepoError", "PermissionDeniedError")
_UNKNOWN = ("RepositoryNotFoundError", "NotExistError", "AuthenticationError")
_NETWORK = {"ServerError", "APIError", "FileDownloadError", "HTTPError", "TransportError"}
"""Names of exceptions of the network, or kinds of them, that are no OSError: the last two are httpx's."""
_LASTING = frozenset((*_GATED, *_UNKNOWN, "RevisionNotFoundError"))
"""Names of exceptions that say what is wrong with the request."""


def hub_reason(error: Exception, hub: str, kind: str = "model") -> tuple[str, bool]:
    """One line on what a library or the network raised, and True if trying again does not help.

    kind: of what was requested.
    """
    is_denied = getattr(getattr(error, "response", None), "status_code", None) == 403
    return _hub_line(error, hub, kind), is_denied or type(error).__name__ in _LASTING


def _hub_line(error: Exception, hub: str, kind: str) -> str:
    name, text = type(error).__name__, " ".join(str(error).split())[:200]
    if hub == "huggingface":
        from huggingface_hub import constants

        where = constants.ENDPOINT
    else:
        where = os.environ.get("MODELSCOPE_ENDPOINT") or "https://modelscope.cn"
    if getattr(getattr(error, "response", None), "status_code", None) == 403 and name not in _GATED:
        return f"{where} does not allow it: {TOKENS[hub]} may not read or write this {kind}"
    match name:
        case _ if name in _GATED:
            return f"its owner asks for consent: accept the terms at {where} and set {TOKENS[hub]}"
        case _ if name in _UNKNOWN:
            return f"{where} has no {kind} of that name, or it is private and {TOKENS[hub]} is not set"
        case "RevisionNotFoundError":
            return f"{where} has no such revision of it"
        case "FileIntegrityError" | "FileSizeMismatchError":
            return f"the hub sent other bytes than it announced ({text})"
    if is_full(error):
        return "the disk of the cache is full"
    if isinstance(error, OSError) or _NETWORK & {kind.__name__ for kind in type(error).__mro__}:
        return f"{where} cannot be reached, or ended the connection ({first_cause(error)[:200]})"
    return f"what {where} answers cannot be read ({name}: {text})"


def is_full(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
