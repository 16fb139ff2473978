"""Child process that fetches a model with the client of its hub: what is read here, checked by digest.

It imports nothing of this package, and is alone in having a network.
"""

import errno
import fnmatch
import hashlib
import json
import os
import resource
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

FILES = (
    *("config.json", "generation_config.json", "adapter_config.json", "quantize_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("chat_template.*", "vocab.json", "vocab.txt", "vocab.model", "merges.txt", "*.tiktoken"),
    *("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "ice_text.model"),
)
"""Files beside the weights that a folder may be read by; texts and vocabularies, no code."""

_TOKENS = {"huggingface": "HF_TOKEN", "modelscope": "MODELSCOPE_API_TOKEN"}
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
    """Answers `request`, JSON: hub, cache, name, revision, further patterns, the name of the record to write.

    Sends JSON objects: `files` with their bytes, and the commit; after a go-ahead `bytes` now and then, which
    are there; at the end `folder`. Or `error`, a line, and whether it `lasts`, whenever it is tried again.
    """

    def send(**fields: Any) -> None:
        connection.send_bytes(json.dumps(fields).encode())

    try:
        _fetch(send, connection, json.loads(request))
    except _Refused as refused:
        send(error=str(refused))
    except EOFError:  # nobody wants it any more
        pass
    except Exception as error:
        lasts = type(error).__name__ in _LASTING
        send(error=_reason(error, json.loads(request)["hub"]), lasts=lasts)


def _fetch(send: Any, connection: Connection, request: dict[str, Any]) -> None:
    _limit_files(_LARGEST_TEXT)
    hub = _HUBS[request["hub"]](request["name"], request["revision"], Path(request["cache"]))
    # What is in folders is for other programs; a name that leads out of its folder is among it.
    listed = {file: entry for file, entry in hub.listed.items() if _is_plain(file)}
    chosen = _fitting(listed, FILES) + _weights(listed, request["files"], hub.download)
    sizes = {file: listed[file].size for file in dict.fromkeys(chosen)}
    if "config.json" not in sizes and "adapter_config.json" not in sizes:
        raise _Refused("has no config.json")
    send(files=sizes, commit=hub.commit, hub=hub.address)
    connection.recv_bytes()
    _limit_files(max(sizes.values()))
    with _reporting(send, hub.home):
        paths = {file: _persistent(hub, file) for file in sizes}
        digests = {file: _checked(paths[file], listed[file]) for file in sizes}
    folder = paths[next(iter(paths))].parent
    record = {
        "name": request["name"],
        "revision": request["revision"] or hub.main,
        "commit": hub.commit,
        "hub": hub.address,
        "files": digests,
    }
    _write(folder / request["record"], json.dumps(record, indent=1))
    # By this the revision is found later, without a network: it is there when all of it is.
    _write(hub.home / "refs" / record["revision"], hub.commit)
    send(folder=str(folder))


class _Listed(NamedTuple):
    """A file as a hub lists it. digest: with its kind: sha256, or git's sha1 of small files; or none."""

    file: str
    size: int
    digest: str | None


class _HuggingFace:
    """Hugging Face's hub, or one that answers alike. home: of the model, in the cache."""

    main = "main"

    def __init__(self, name: str, revision: str | None, cache: Path) -> None:
        from huggingface_hub import HfApi, constants

        # What a connection brings of a chunk before it is cut is lost: 10 MB of them might never arrive.
        constants.DOWNLOAD_CHUNK_SIZE = _CHUNK
        self.address = constants.ENDPOINT
        self.home, self._cache, self._name = cache / f"models--{name.replace('/', '--')}", cache, name
        info = HfApi().model_info(name, revision=revision, files_metadata=True)
        self.commit = str(info.sha)
        self.listed = {
            entry.rfilename: _Listed(
                entry.rfilename,
                int(entry.size or 0),
                f"sha256:{entry.lfs.sha256}" if entry.lfs else f"sha1:{entry.blob_id}",
            )
            for entry in info.siblings or ()
        }

    def download(self, file: str) -> Path:
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(self._name, file, revision=self.commit, cache_dir=self._cache))


class _ModelScope:
    """ModelScope. commit: a digest of the list of files, which it tells no commit of."""

    main = "master"

    def __init__(self, name: str, revision: str | None, cache: Path) -> None:
        from modelscope_hub import HubApi

        self._api, self._name, self._revision = HubApi(), name, revision or self.main
        self.address = str(self._api._config.endpoint)
        files = self._api.list_repo_files(name, "model", revision=self._revision, recursive=False)
        self.listed = {
            entry.path: _Listed(entry.path, entry.size, f"sha256:{entry.sha256}" if entry.sha256 else None)
            for entry in files
            if not entry.is_dir
        }
        self.commit = hashlib.sha256(repr(sorted(self.listed.values())).encode()).hexdigest()[:40]
        self.home = cache / f"models--{name.replace('/', '--')}"

    def download(self, file: str) -> Path:
        return Path(
            self._api.download_file(
                self._name,
                "model",
                file,
                revision=self._revision,
                local_dir=self.home / "snapshots" / self.commit,
                file_size=self.listed[file].size,
            )
        )


_HUBS: dict[str, type[_HuggingFace] | type[_ModelScope]] = {
    "huggingface": _HuggingFace,
    "modelscope": _ModelScope,
}


def _limit_files(most: int) -> None:
    """A server that sends more than it has announced shall not fill the disk."""
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (most + _SPARE_BYTES, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    )


def _is_plain(name: str) -> bool:
    return "/" not in name and "\\" not in name and not name.startswith(".")


def _fitting(files: Iterable[str], patterns: Iterable[str]) -> list[str]:
    return [file for file in files if any(fnmatch.fnmatchcase(file, pattern) for pattern in patterns)]


def _weights(listed: Mapping[str, _Listed], patterns: list[str], download: Any) -> list[str]:
    """The files with tensors: those that an index names, or one, and what was asked for by name."""
    asked = _fitting(listed, patterns)
    if code := _fitting(asked, _CODE):
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


def _persistent(hub: Any, file: str) -> Path:
    """Fetches a file, going on where a connection was cut as long as some of it comes."""
    tries, before = 0, -1
    while True:
        try:
            path: Path = hub.download(file)
            return path
        except OSError as error:
            if error.errno == errno.EFBIG or "Consistency check failed" in str(error):
                for part in hub.home.rglob("*.incomplete"):  # it would be gone on from
                    part.unlink()
                raise _Refused(f"{file}: the hub sent another number of bytes than it announced") from error
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
                raise
            now = _bytes_in(hub.home)
            tries, before = (tries + 1 if now == before else 0), now
            if tries == _TRIES:
                raise


def _checked(path: Path, listed: _Listed) -> str:
    """The digest of a file, which is the one that the hub has listed, if it has one."""
    size = path.stat().st_size
    is_git = listed.digest is not None and listed.digest.startswith("sha1:")
    digest = hashlib.sha1(b"blob %d\0" % size) if is_git else hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    made = f"{digest.name}:{digest.hexdigest()}"
    if listed.digest not in (None, made) or size != listed.size:
        with suppress(OSError):
            path.resolve().unlink()
            path.unlink()
        raise _Refused(f"{listed.file}: its digest is not the one that the hub lists; it was removed")
    return made


@contextmanager
def _reporting(send: Any, home: Path) -> Iterator[None]:
    """Sends now and then how many bytes are there, whatever brings them."""
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
