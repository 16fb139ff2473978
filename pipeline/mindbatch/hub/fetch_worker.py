"""Child process that fetches a model's files from its hub: those that are read here, checked by digest.

It is alone in having a network.
"""

import fnmatch
import json
from collections.abc import Iterable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from mindbatch.checkpoint.folders.folder_files import CONFIG_FILES, TOKENIZER_FILES
from mindbatch.checkpoint.formats.registry import READ, format_of
from mindbatch.checkpoint.formats.safetensors import INDEX_NAME, SAFETENSORS, SINGLE_NAME
from mindbatch.hub.blobs import Blobs
from mindbatch.hub.listings import HuggingFace, ListedFile, ModelScope, Refused
from mindbatch.hub.worker import answer, deadline, hub_reason, limit_files, reporting, write

FILES = (
    *(*CONFIG_FILES, *TOKENIZER_FILES),
    *("adapter_config.json", "quantize_config.json", "chat_template.*", "*.tiktoken"),
)
"""Patterns of the files that a model is read from, besides its weights: texts and vocabularies, no code."""

_CODE = ("*.py", "*.so", "*.sh")
_LARGEST_TEXT = 64 << 20
"""Of the index, which is read before anything is agreed to."""


def main(connection: Connection, request: str) -> None:
    """Answers `request`, JSON: hub, cache, name, revision, further patterns, the name of the record to write.

    Sends `files` with their sizes, and the commit; after a go-ahead, now and then, the number of `bytes` so
    far; at the end `folder`. In case of an error see `worker.answer`.
    """
    answer(connection, request, _fetch, lambda error, values: hub_reason(error, values["hub"]))


def _fetch(send: Any, connection: Connection, request: dict[str, Any]) -> None:
    limit_files(_LARGEST_TEXT)
    with deadline(request["seconds"], "the list of its files"):
        hub = _HUBS[request["hub"]](request["name"], request["revision"])
        blobs = Blobs(Path(request["cache"]), request["name"], hub)
        chosen = _without_code(_fitting(hub.listed, FILES)) + _weights(hub.listed, request["files"], blobs)
    sizes = {file: hub.listed[file].size for file in dict.fromkeys(chosen)}
    if "config.json" not in sizes and "adapter_config.json" not in sizes:
        raise Refused("has no config.json")
    send(files=sizes, commit=hub.commit, hub=hub.address)
    connection.recv_bytes()
    limit_files(max(sizes.values()))
    with reporting(send, blobs.home):
        digests = {file: blobs.fetch(hub.listed[file])[1] for file in sizes}
    record = {
        "name": request["name"],
        "revision": request["revision"] or hub.main,
        "commit": hub.commit,
        "hub": hub.address,
        "files": digests,
    }
    write(blobs.folder / request["record"], json.dumps(record, indent=1))
    # Finds the revision later, without a network; so it is written last.
    write(blobs.home / "refs" / record["revision"], hub.commit)
    send(folder=str(blobs.folder))


_HUBS: dict[str, type[HuggingFace] | type[ModelScope]] = {
    "huggingface": HuggingFace,
    "modelscope": ModelScope,
}


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
