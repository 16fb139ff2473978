"""Child process that fetches files of a dataset from a hub, or uploads results to one in a single commit."""

from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from mindbatch.hub.blobs import Blobs
from mindbatch.hub.listings import HuggingFaceDataset, Refused
from mindbatch.hub.worker import answer, deadline, hub_reason, limit_files, reporting
from mindbatch.io.file_patterns import is_pattern
from mindbatch.remote.splits import CARD, LARGEST_CARD, chosen_files, is_data

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
