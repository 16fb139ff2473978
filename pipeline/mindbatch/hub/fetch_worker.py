"""Child process that fetches a model's files from its hub: those that are read here, checked by digest.

It is alone in having a network.
"""

import errno
import fnmatch
import json
import os
import resource
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from mindbatch.checkpoint.folders.folder_files import CONFIG_FILES, TOKENIZER_FILES
from mindbatch.checkpoint.formats.registry import READ, format_of
from mindbatch.checkpoint.formats.safetensors import INDEX_NAME, SAFETENSORS, SINGLE_NAME
from mindbatch.hub.blobs import Blobs
from mindbatch.hub.listings import COMMIT, HuggingFace, ListedFile, ModelScope, Refused
from mindbatch.io.child_main import limit

FILES = (
    *(*CONFIG_FILES, *TOKENIZER_FILES),
    *("adapter_config.json", "quantize_config.json", "chat_template.*", "*.tiktoken"),
)
"""Patterns of the files that a model is read from, besides its weights: texts and vocabularies, no code."""

_TOKENS = {"huggingface": "HF_TOKEN", "modelscope": "MODELSCOPE_API_TOKEN"}
_CODE = ("*.py", "*.so", "*.sh")
_REPORT_SECONDS = 0.5
_SPARE_BYTES = 1 << 20
_MEMORY_BYTES = 512 << 20
_LARGEST_TEXT = 64 << 20
"""Of the index, which is read before anything is agreed to."""


def main(connection: Connection, request: str) -> None:
    """Answers `request`, JSON: hub, cache, name, revision, further patterns, the name of the record to write.

    Sends JSON objects: `files` with their sizes, and the commit; after a go-ahead, now and then, the number
    of `bytes` so far; at the end `folder`. In case of an error it sends `error`, a line, and `lasts`, true if
    trying again does not help.
    """

    def send(**fields: Any) -> None:
        connection.send_bytes(json.dumps(fields).encode())

    try:
        _fetch(send, connection, json.loads(request))
    except Refused as refused:
        send(error=str(refused))
    except EOFError:  # nobody wants it any more
        pass
    except MemoryError:
        send(error=f"the hub's answer takes more than {_MEMORY_BYTES >> 20} MiB, and was given up")
    except Exception as error:
        lasts = type(error).__name__ in _LASTING
        send(error=_reason(error, json.loads(request)["hub"]), lasts=lasts)


def _fetch(send: Any, connection: Connection, request: dict[str, Any]) -> None:
    limit(resource.RLIMIT_AS, _MEMORY_BYTES)
    limit(resource.RLIMIT_CORE, 0)
    _limit_files(_LARGEST_TEXT)
    with _deadline(request["seconds"], "the list of its files"):
        hub = _HUBS[request["hub"]](request["name"], request["revision"])
        if not COMMIT.fullmatch(hub.commit):
            raise Refused(f"the hub names no commit of it, {hub.commit[:80]!a}")
        blobs = Blobs(Path(request["cache"]), request["name"], hub)
        chosen = _without_code(_fitting(hub.listed, FILES)) + _weights(hub.listed, request["files"], blobs)
    sizes = {file: hub.listed[file].size for file in dict.fromkeys(chosen)}
    if "config.json" not in sizes and "adapter_config.json" not in sizes:
        raise Refused("has no config.json")
    send(files=sizes, commit=hub.commit, hub=hub.address)
    connection.recv_bytes()
    _limit_files(max(sizes.values()))
    with _reporting(send, blobs.home):
        digests = {file: blobs.fetch(hub.listed[file])[1] for file in sizes}
    record = {
        "name": request["name"],
        "revision": request["revision"] or hub.main,
        "commit": hub.commit,
        "hub": hub.address,
        "files": digests,
    }
    _write(blobs.folder / request["record"], json.dumps(record, indent=1))
    # Finds the revision later, without a network; so it is written last.
    _write(blobs.home / "refs" / record["revision"], hub.commit)
    send(folder=str(blobs.folder))


_HUBS: dict[str, type[HuggingFace] | type[ModelScope]] = {
    "huggingface": HuggingFace,
    "modelscope": ModelScope,
}


def _limit_files(max_bytes: int) -> None:
    """Limits the size of files, so that a server that sends more than it announced cannot fill the disk."""
    max_bytes += _SPARE_BYTES
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    soft = max_bytes if hard == resource.RLIM_INFINITY else min(max_bytes, hard)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def _deadline(seconds: float, description: str) -> Iterator[None]:
    """Bounds the time of a block: a server may send a byte now and then without end."""

    def late(*_: object) -> None:
        raise Refused(f"{description} was not there after {seconds:g} seconds")

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _fitting(files: Iterable[str], patterns: Iterable[str]) -> list[str]:
    return [file for file in files if any(fnmatch.fnmatchcase(file, pattern) for pattern in patterns)]


def _without_code(files: Iterable[str]) -> list[str]:
    return [file for file in files if not _fitting([file], _CODE)]


def _weights(listed: Mapping[str, ListedFile], patterns: list[str], blobs: Blobs) -> list[str]:
    """Chooses the files of safetensors that an index names, or a single one; and the requested patterns'."""
    requested = _fitting(listed, patterns)
    if code := _fitting(requested, _CODE):
        raise Refused(f"model.download_files: {code[0]} is code, which is never fetched")
    if INDEX_NAME in listed:
        return [INDEX_NAME, *_named_by_index(listed, blobs), *requested]
    weights = [file for file in listed if "/" not in file and SAFETENSORS.matches(file)]
    weights = [file for file in (SINGLE_NAME, SAFETENSORS.adapter_file) if file in weights] or weights
    if not weights and not requested:
        raise Refused(f"has no safetensors{_other_weights(listed)}")
    return weights + requested


def _other_weights(listed: Iterable[str]) -> str:
    """Names the first file of another format, and how to have it fetched."""
    for file in listed:
        if (known := format_of(file)) in READ:
            kind = "a pickle" if known.is_pickle else f"of {known.title}"
            return f"; {file} is {kind}: name it in model.download_files"
    return ""


def _named_by_index(listed: Mapping[str, ListedFile], blobs: Blobs) -> list[str]:
    if (num_bytes := listed[INDEX_NAME].size) > _LARGEST_TEXT:
        raise Refused(f"{INDEX_NAME} has {num_bytes} bytes; at most {_LARGEST_TEXT} are allowed")
    path, _ = blobs.fetch(listed[INDEX_NAME])
    named = sorted({str(file) for file in json.loads(path.read_bytes())["weight_map"].values()})
    if lost := [file for file in named if file not in listed]:
        raise Refused(f"{INDEX_NAME} names {lost[0][:200]!a}, which does not exist")
    if others := [file for file in named if not SAFETENSORS.matches(file)]:
        raise Refused(f"{INDEX_NAME} names {others[0]!a}; must be a file in safetensors")
    return named


@contextmanager
def _reporting(send: Any, home: Path) -> Iterator[None]:
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


def _write(path: Path, text: str) -> None:
    """Writes a file that appears whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(text)
    partial.replace(path)


def _first_cause(error: BaseException) -> str:
    """The words of the system, below all that libraries have put around them."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__


_GATED = ("GatedRepoError", "PermissionDeniedError")
_UNKNOWN = ("RepositoryNotFoundError", "NotExistError", "AuthenticationError")
_LASTING = frozenset((*_GATED, *_UNKNOWN, "RevisionNotFoundError"))
"""Names of exceptions that say what is wrong with the request."""


def _reason(error: Exception, hub: str) -> str:
    """One line on what a library or the network raised."""
    kind, text = type(error).__name__, " ".join(str(error).split())[:200]
    if hub == "huggingface":
        from huggingface_hub import constants

        where = constants.ENDPOINT
    else:
        where = os.environ.get("MODELSCOPE_ENDPOINT") or "https://modelscope.cn"
    match kind:
        case _ if kind in _GATED:
            return f"its owner asks for consent: accept the terms at {where} and set {_TOKENS[hub]}"
        case _ if kind in _UNKNOWN:
            return f"{where} has no model of that name, or it is private and {_TOKENS[hub]} is not set"
        case "RevisionNotFoundError":
            return f"{where} has no such revision of it"
        case "FileIntegrityError" | "FileSizeMismatchError":
            return f"the hub sent other bytes than it announced ({text})"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk of the cache is full"
    if isinstance(error, OSError) or kind in ("ServerError", "APIError", "FileDownloadError"):
        return f"{where} cannot be reached, or ended the connection ({_first_cause(error)[:200]})"
    return f"what {where} answers cannot be read ({kind}: {text})"
