"""Child process that fetches a model with huggingface_hub: the files that are read here, checked by digest.

It imports nothing of this package, and is alone in having a network.
"""

from __future__ import annotations

import errno
import fnmatch
import hashlib
import json
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

FILES = (
    *("config.json", "generation_config.json", "adapter_config.json", "quantize_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("chat_template.*", "vocab.json", "vocab.txt", "vocab.model", "merges.txt", "*.tiktoken"),
    *("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "ice_text.model"),
)
"""Files beside the weights that a folder may be read by; texts and vocabularies, no code."""

INDEX = "model.safetensors.index.json"
_CODE = ("*.py", "*.so", "*.sh")
_TRIES = 5
"""So often in a row a connection may end without having brought anything."""
_REPORT_SECONDS = 0.5
_CHUNK = 1 << 17
_SPARE_BYTES = 1 << 20
_LARGEST_TEXT = 64 << 20
"""Of the index, which is read before anything is agreed to."""


class _Refused(Exception):
    """One line that says what is wrong."""


def main(connection: Connection, request: str) -> None:
    """Answers `request`, a JSON object: name, revision, further patterns, the name of the record to write.

    Sends JSON objects: `files` with their bytes, and the commit; after a go-ahead `bytes` now and then, which
    are there; at the end `folder`. Or `fault`, a line.
    """

    def send(**fields: Any) -> None:
        connection.send_bytes(json.dumps(fields).encode())

    try:
        _fetch(send, connection, json.loads(request))
    except _Refused as refused:
        send(fault=str(refused))
    except EOFError:  # nobody wants it any more
        pass
    except Exception as error:
        send(fault=_reason(error))


def _fetch(send: Any, connection: Connection, request: dict[str, Any]) -> None:
    from huggingface_hub import HfApi, constants, hf_hub_download

    # What a connection brings of a chunk before it is cut is lost: 10 MB of them might never arrive.
    constants.DOWNLOAD_CHUNK_SIZE = _CHUNK
    name, revision = request["name"], request["revision"]
    _limit_files(_LARGEST_TEXT)
    info = HfApi().model_info(name, revision=revision, files_metadata=True)
    commit = str(info.sha)
    # What is in folders is for other programs; a name that leads out of its folder is among it.
    listed = {entry.rfilename: entry for entry in info.siblings or () if _is_plain(entry.rfilename)}

    def download(file: str) -> Path:
        return Path(hf_hub_download(name, file, revision=commit))

    chosen = [
        file for file in listed if any(fnmatch.fnmatchcase(file, pattern) for pattern in FILES)
    ] + _weights(listed, request["files"], download)
    sizes = {file: int(listed[file].size or 0) for file in dict.fromkeys(chosen)}
    if "config.json" not in sizes and "adapter_config.json" not in sizes:
        raise _Refused("has no config.json")
    send(files=sizes, commit=commit, hub=constants.ENDPOINT)
    connection.recv_bytes()
    _limit_files(max(sizes.values()))
    blobs = Path(constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}" / "blobs"
    with _reporting(send, blobs):
        paths = {file: _persistent(download, file, blobs) for file in sizes}
        digests = {file: _checked(paths[file], listed[file]) for file in sizes}
    folder = paths[next(iter(paths))].parent
    record = {
        "name": name,
        "revision": revision or "main",
        "commit": commit,
        "hub": constants.ENDPOINT,
        "files": digests,
    }
    _write(folder / request["record"], json.dumps(record, indent=1))
    # By this the revision is found later, without a network: it is there when all of it is.
    _write(blobs.parent / "refs" / record["revision"], commit)
    send(folder=str(folder))


def _limit_files(most: int) -> None:
    """A server that sends more than it has announced shall not fill the disk."""
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (most + _SPARE_BYTES, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    )


def _is_plain(name: str) -> bool:
    return "/" not in name and "\\" not in name and not name.startswith(".")


def _weights(listed: dict[str, Any], patterns: list[str], download: Any) -> list[str]:
    """The files with tensors: those that an index names, or one, and what was asked for by name."""
    asked = [file for file in listed if any(fnmatch.fnmatchcase(file, pattern) for pattern in patterns)]
    if code := [file for file in asked if any(fnmatch.fnmatchcase(file, kind) for kind in _CODE)]:
        raise _Refused(f"model.download_files: {code[0]} is code, which is never fetched")
    if INDEX in listed:
        named = json.loads(download(INDEX).read_text())["weight_map"].values()
        if lost := sorted({str(file) for file in named} - {*listed}):
            raise _Refused(f"{INDEX} names {lost[0]!r}, which is not there")
        return [INDEX, *sorted({*named}), *asked]
    weights = [file for file in listed if "/" not in file and file.endswith(".safetensors")]
    weights = [
        file for file in ("model.safetensors", "adapter_model.safetensors") if file in weights
    ] or weights
    if not weights and not asked:
        pickles = [file for file in listed if file.endswith((".bin", ".pt", ".pth", ".ckpt"))]
        there = f"; {pickles[0]} is a pickle: name it in model.download_files" if pickles else ""
        raise _Refused(f"has no safetensors{there}")
    return weights + asked


def _persistent(download: Any, file: str, blobs: Path) -> Path:
    """Fetches a file, going on where a connection was cut as long as some of it comes."""
    tries, before = 0, -1
    while True:
        try:
            path: Path = download(file)
            return path
        except OSError as error:
            if error.errno == errno.EFBIG or "Consistency check failed" in str(error):
                for part in blobs.glob("*.incomplete"):  # it would be gone on from
                    part.unlink()
                raise _Refused(f"{file}: the hub sent another number of bytes than it announced") from error
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
                raise
            now = _bytes_in(blobs)
            tries, before = (tries + 1 if now == before else 0), now
            if tries == _TRIES:
                raise


def _checked(path: Path, entry: Any) -> str:
    """The digest of a file, which is the one that the hub has listed: SHA-256, or of small files git's."""
    size = path.stat().st_size
    digest = hashlib.sha256() if entry.lfs else hashlib.sha1(b"blob %d\0" % size)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    listed = entry.lfs.sha256 if entry.lfs else entry.blob_id
    if digest.hexdigest() != listed:
        with suppress(OSError):
            path.resolve().unlink()
            path.unlink()
        raise _Refused(f"{entry.rfilename}: its digest is not the one that the hub lists; it was removed")
    return f"{digest.name}:{digest.hexdigest()}"


@contextmanager
def _reporting(send: Any, blobs: Path) -> Iterator[None]:
    """Sends now and then how many bytes are there, whatever brings them."""
    over = threading.Event()

    def report() -> None:
        while not over.wait(_REPORT_SECONDS):
            send(bytes=_bytes_in(blobs))

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _bytes_in(folder: Path) -> int:
    total = 0
    with suppress(OSError):
        for entry in os.scandir(folder):
            with suppress(OSError):
                total += entry.stat().st_size
    return total


def _write(path: Path, text: str) -> None:
    """Writes a file that appears whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(text)
    partial.replace(path)


def _reason(error: Exception) -> str:
    """One line on what a library or the network raised."""
    from huggingface_hub import constants
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    hub = constants.ENDPOINT
    if isinstance(error, GatedRepoError):
        return f"its owner asks for consent: accept the terms at {hub} and set HF_TOKEN"
    if isinstance(error, RepositoryNotFoundError):
        return f"{hub} has no model of that name, or it is private and HF_TOKEN is not set"
    if isinstance(error, RevisionNotFoundError):
        return f"{hub} has no such revision of it"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk of {constants.HF_HUB_CACHE} is full"
    text = " ".join(str(error).split())
    if isinstance(error, OSError):
        return f"{hub} cannot be reached, or ended the connection ({text[:200]})"
    return f"what {hub} answers cannot be read ({type(error).__name__}: {text[:200]})"
