"""Child process that fetches objects of S3 or Google Cloud Storage, or uploads results there."""

import fcntl
import hashlib
import json
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from mindbatch.hub.worker import answer, deadline, first_cause, is_full, limit_files, reporting
from mindbatch.remote.object_store import STORES, StoredObject

_MEMORY_BYTES = 4 << 30
"""Address space: asyncio's threads and the descriptions of all services of AWS take some of it."""
_ENVIRONMENT = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile of AWS's tools",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, or gcloud auth application-default login",
}
_NO_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError", "RefreshError")
_DENIED = (401, 403)


def fetch(connection: Connection, request: str) -> None:
    """Answers `request`, JSON: scheme, bucket, path, keys if they are known, cache, seconds to list.

    Sends `objects`, by key `size`, `etag` and `version`, and the keys `missing` in the cache; after a
    go-ahead the number of `bytes` now and then; at the end `folder`, in which a file has the path of its key.
    In case of an error see `worker.answer`.
    """
    answer(connection, request, _fetch, reason, _MEMORY_BYTES)


def _fetch(send: Any, connection: Connection, request: dict[str, Any]) -> None:
    with deadline(request["seconds"], "the list of its objects"):
        store = STORES[request["scheme"]](request["bucket"])
        keys: list[str] = request["keys"] or store.find(request["path"])
        objects = store.stat_all(keys)
    if not objects and not request["keys"]:
        raise FileNotFoundError
    folder = _folder(Path(request["cache"]), request, objects)
    missing = [key for key in objects if not (folder / key).is_file()]
    send(objects={key: recorded(stored) for key, stored in objects.items()}, missing=missing)
    connection.recv_bytes()
    folder.mkdir(parents=True, exist_ok=True)
    limit_files(max(stored.size for stored in objects.values()))
    with (folder / ".lock").open("w") as lock, reporting(send, folder):
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may fetch the same
        for key, stored in objects.items():
            if not (folder / key).is_file():
                store.fetch(key, stored, folder / key)
    send(folder=str(folder))


def recorded(stored: StoredObject) -> dict[str, Any]:
    """Converts to what a run records of an object."""
    about: dict[str, Any] = {"size": stored.size, "etag": stored.etag}
    return about | ({"version": stored.version} if stored.version else {})


def _folder(cache: Path, request: dict[str, Any], objects: dict[str, StoredObject]) -> Path:
    """The folder of exactly these versions of objects."""
    identity = [request["scheme"], request["endpoint"], request["bucket"], sorted(objects.items())]
    return cache / hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:40]


def check(connection: Connection, request: str) -> None:
    """Answers `request`, JSON: scheme, bucket, folder, names of files, seconds.

    Sends `existing`, those of the files that exist. It is an error if the credentials may not write there.
    """
    answer(connection, request, _check, reason, _MEMORY_BYTES)


def _check(send: Any, connection: Connection, request: dict[str, Any]) -> None:
    folder = request["folder"]
    with deadline(request["seconds"], "the answer of the store"):
        store = STORES[request["scheme"]](request["bucket"])
        existing = store.stat_all([folder + name for name in request["names"]])
        store.can_write(folder + request["names"][0])
    send(existing=sorted(key.removeprefix(folder) for key in existing))


def upload(connection: Connection, request: str) -> None:
    """Answers `request`, JSON: scheme, bucket, folder, `files`, paths here by name, and names to remove.

    Sends `objects`, as `fetch` does, after the size and digest of each was compared.
    """
    answer(connection, request, _upload, reason, _MEMORY_BYTES)


def _upload(send: Any, connection: Connection, request: dict[str, Any]) -> None:
    store, folder = STORES[request["scheme"]](request["bucket"]), request["folder"]
    objects = {}
    for name, path in request["files"].items():
        objects[folder + name] = recorded(store.upload(Path(path), folder + name))
    for name in request["removed"]:
        store.remove(folder + name)
    send(objects=objects)


def reason(error: Exception, values: dict[str, Any]) -> tuple[str, bool]:
    """One line on what a library or the network raised, and True if trying again does not help."""
    scheme = values["scheme"]
    where = f"{scheme}://{values['bucket']}"
    causes = [*_causes(error)]
    if any(type(cause).__name__ in _NO_CREDENTIALS for cause in causes):
        return f"no credentials for {where}: set {_ENVIRONMENT[scheme]}", True
    if isinstance(error, FileNotFoundError):
        return "no such object, or no such bucket", True
    if any(map(_is_denied, causes)):
        return f"access to {where} is denied for these credentials ({_ENVIRONMENT[scheme]})", True
    if is_full(error):
        return "the disk of the cache is full", False
    return f"{where} cannot be reached, or ended the connection ({first_cause(error)[:200]})", False


def _causes(error: BaseException | None) -> Any:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_denied(error: BaseException) -> bool:
    """True for an answer 401 or 403, which gcsfs raises as an OSError with a text."""
    is_forbidden = isinstance(error, OSError) and str(error).startswith("Forbidden")
    return isinstance(error, PermissionError) or is_forbidden or getattr(error, "code", None) in _DENIED
