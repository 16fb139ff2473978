"""Child process that fetches files of a dataset from a hub, or uploads results there in one commit."""

from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from mindbatch.hub.blobs import Blobs, file_digest
from mindbatch.hub.listings import HuggingFaceDataset, Refused
from mindbatch.hub.worker import answer, deadline, hub_reason, limit_files, reporting
from mindbatch.io.file_patterns import is_pattern
from mindbatch.remote.splits import CARD, LARGEST_CARD, chosen_files, is_data

_UPLOAD_MEMORY_BYTES = 4 << 30
_MAX_NAMED = 100
"""Number of files that are looked up by name; for more all are listed."""


def fetch(connection: Connection, request: str) -> None:
    """Answers `request`, JSON: name, revision, path, cache, suffixes of files with rows, seconds to list,
    and `files` if they are known.

    Sends `files` with their sizes, `commit` and `hub`; after a go-ahead the number of `bytes` now and then;
    at the end `folder` and the `digests` of the files. In case of an error see `worker.answer`.
    """
    answer(connection, request, _fetch, _reason)


def _reason(error: Exception, values: dict[str, Any]) -> tuple[str, bool]:
    return hub_reason(error, "huggingface", "dataset")


def _fetch(send: Any, connection: Connection, request: dict[str, Any]) -> None:
    limit_files(LARGEST_CARD)
    with deadline(request["seconds"], "the list of its files"):
        hub = HuggingFaceDataset(request["name"], request["revision"])
        blobs = Blobs(Path(request["cache"]), request["name"], hub)
        files = _files_of(hub, blobs, request)
    sizes = {file: hub.listed[file].size for file in files}
    send(files=sizes, commit=hub.commit, hub=hub.address)
    connection.recv_bytes()
    limit_files(max(sizes.values()))
    with reporting(send, blobs.home):
        digests = {file: blobs.fetch(hub.listed[file])[1] for file in sizes}
    send(folder=str(blobs.folder), digests=digests)


def _files_of(hub: HuggingFaceDataset, blobs: Blobs, request: dict[str, Any]) -> list[str]:
    """Lists what is needed, and returns the names of the files. Raises Refused."""
    path, suffixes = request["path"], request["suffixes"]
    wanted: list[str] = request["files"] or [path]
    if request["files"] or (is_data(path, suffixes) and not is_pattern(path)):
        if len(wanted) <= _MAX_NAMED:
            hub.list_named(wanted)
        else:
            hub.list_all()
        if lost := [file for file in wanted if file not in hub.listed]:
            raise Refused(f"has no file {lost[0]}", lasts=True)
        return wanted
    hub.list_all()
    if not (files := chosen_files(hub.listed, _card(hub, blobs), path, suffixes)):
        raise Refused("has no file of rows", lasts=True)
    return files


def _card(hub: HuggingFaceDataset, blobs: Blobs) -> str:
    """The text of the dataset's card; empty if there is none, or one that is too long to be one."""
    card = hub.listed.get(CARD)
    if card is None or card.size > LARGEST_CARD:
        return ""
    return blobs.fetch(card)[0].read_text(encoding="utf-8", errors="replace")


def check(connection: Connection, request: str) -> None:
    """Answers `request`, JSON: name, revision, folder, names of files, seconds.

    Sends `existing`, those of the files that exist in the branch. It is an error if the token may not write.
    """
    answer(connection, request, _check, _reason, _UPLOAD_MEMORY_BYTES)


def _check(send: Any, connection: Connection, request: dict[str, Any]) -> None:
    from huggingface_hub import CommitOperationAdd, HfApi, get_token

    if get_token() is None:
        raise Refused("no token: set HF_TOKEN to one that may write", lasts=True)
    name, folder, revision = request["name"], request["folder"], request["revision"]
    with deadline(request["seconds"], "the answer of the hub"):
        hub = HuggingFaceDataset(name, revision)
        hub.list_named([folder + file for file in request["names"]])
        empty = CommitOperationAdd(f"{folder}{request['names'][0]}", b"")
        # Asks how the file would be sent, as whoever may write; an empty one is not sent before a commit.
        HfApi().preupload_lfs_files(name, [empty], repo_type=hub.kind, revision=revision)
    send(existing=sorted(file.removeprefix(folder) for file in hub.listed))


def upload(connection: Connection, request: str) -> None:
    """Answers `request`, JSON: name, revision, folder, `files`, paths here by name, and names to remove.

    Sends `hub` and `commit`, after the sizes and digests of the files in that commit were compared.
    """
    answer(connection, request, _upload, _reason, _UPLOAD_MEMORY_BYTES)


def _upload(send: Any, connection: Connection, request: dict[str, Any]) -> None:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    name, folder, revision = request["name"], request["folder"], request["revision"]
    files = {folder + file: Path(path) for file, path in request["files"].items()}
    before = HuggingFaceDataset(name, revision)
    before.list_named([folder + file for file in request["removed"]])
    commit = HfApi().create_commit(
        name,
        [
            *(CommitOperationAdd(file, str(path)) for file, path in files.items()),
            *(CommitOperationDelete(file) for file in before.listed),
        ],
        commit_message="Results of MindBatch",
        repo_type=before.kind,
        revision=revision,
        num_threads=1,
    )
    after = HuggingFaceDataset(name, commit.oid)
    after.list_named([*files])
    for file, path in files.items():
        listed = after.listed.get(file)
        kind = (listed.digest or "").partition(":")[0] if listed else ""
        if listed is None or listed.size != path.stat().st_size or listed.digest != file_digest(path, kind):
            raise Refused(f"{file}: the hub does not have what was sent, in the commit {after.commit[:12]}")
    send(hub=after.address, commit=after.commit)
