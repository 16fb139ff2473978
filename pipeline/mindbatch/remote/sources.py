"""Fetches the files that addresses stand for into local caches, in the version that a run has recorded."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mindbatch.hub.blobs import entry_name, file_digest
from mindbatch.hub.listings import COMMIT, DIGEST, is_plain_path
from mindbatch.hub.models import cache_folder
from mindbatch.io.amounts import counted, size
from mindbatch.io.errors import ConfigError
from mindbatch.io.screen_text import printable, say
from mindbatch.remote.address import DataAddress, is_remote, parse

_LISTING_SECONDS = 120.0
_USER = re.compile(r"(?<=//)[^/]*@")

SourceRecord = dict[str, Any]
"""What was fetched from an address, in JSON types: from a hub `hub`, `commit` and `files`, the digest of each
by name; from an object store `objects`, by key the `etag`, `size` and, where there is one, `version`."""


class ChangedObject(ConfigError):
    """An object is not the one that the run has recorded."""


class LocalFiles(NamedTuple):
    """The paths of fetched files, in order, and what was fetched from each address."""

    paths: tuple[str, ...]
    records: dict[str, SourceRecord]


def local_files(
    paths: Sequence[str], suffixes: Sequence[str], recorded: Mapping[str, SourceRecord], cache: Path
) -> LocalFiles:
    """Replaces the addresses among `paths` by the local files that they stand for.

    suffixes: of files with rows. recorded: by address, the version to fetch, of the run that is resumed.
    cache: the folder for what comes from object stores.

    Raises:
        ConfigError: there is no such file or split, or no permission.
        ChangedObject: an object has changed since it was recorded.
        MindBatchError: a server cannot be reached, or sends other bytes than it lists.
    """
    local, records = list[str](), dict[str, SourceRecord]()
    for path in paths:
        if not is_remote(path):
            local.append(path)
            continue
        address = parse(path)
        record = _checked(address, recorded[path]) if path in recorded else None
        files, records[path] = _fetched(address, suffixes, record, cache)
        local += map(str, files)
    return LocalFiles(tuple(local), records)


def _checked(address: DataAddress, record: Any) -> SourceRecord:
    """Checks a record, which is of a file that may come from others. Raises ConfigError."""
    match record:
        case {"commit": str(commit), "files": {**files}} if address.is_hub:
            digests = [digest for digest in files.values() if isinstance(digest, str)]
            if files and COMMIT.fullmatch(commit) and len(digests) == len(files):
                names = [*files]
                if all(map(is_plain_path, names)) and all(map(DIGEST.fullmatch, digests)):
                    return dict(record)
        case {"objects": {**objects}} if not address.is_hub:
            known = [key for key, about in objects.items() if isinstance(about, dict) and "etag" in about]
            if objects and len(known) == len(objects) and all(map(is_plain_path, known)):
                return dict(record)
    raise ConfigError(f"run.json: damaged: what it has of {address.text} is no record of fetched files")


def _fetched(
    address: DataAddress, suffixes: Sequence[str], record: SourceRecord | None, cache: Path
) -> tuple[list[Path], SourceRecord]:
    return _of_hub(address, suffixes, record) if address.is_hub else _of_store(address, record, cache)


def _of_hub(
    address: DataAddress, suffixes: Sequence[str], record: SourceRecord | None
) -> tuple[list[Path], SourceRecord]:
    """Fetches files of a dataset; needs no network if the recorded ones are in the cache."""
    if record is not None and (files := _cached(address, record)):
        return files, record
    from mindbatch.hub.network_child import NetworkChild
    from mindbatch.remote import hub_worker  # few runs fetch

    request = {
        "name": address.container,
        "revision": record["commit"] if record else address.revision,
        "path": address.path,
        "files": [*record["files"]] if record else [],
        "cache": str(cache_folder()),
        "suffixes": [*suffixes],
        "seconds": _LISTING_SECONDS,
    }
    with NetworkChild(hub_worker.fetch, request, _key(address)) as child:
        plan = child.message()
        where = f"{printable(plan['hub'])}, commit {plan['commit'][:12]}"
        say(_fetching(address, plan["files"], where))
        child.go_on()
        done = child.followed(sum(plan["files"].values()))
    folder, digests = Path(done["folder"]), done["digests"]
    new = {"hub": plan["hub"], "commit": plan["commit"], "files": digests}
    return [folder / file for file in digests], new


def _of_store(
    address: DataAddress, record: SourceRecord | None, cache: Path
) -> tuple[list[Path], SourceRecord]:
    """Fetches objects, unless the cache has them. They are looked up in any case. Raises ChangedObject."""
    from mindbatch.hub.network_child import NetworkChild
    from mindbatch.remote import object_worker  # few runs fetch

    where = endpoint(address.scheme)
    request = {
        "scheme": address.scheme,
        "endpoint": where,
        "bucket": address.container,
        "path": address.path,
        "keys": [*record["objects"]] if record else [],
        "cache": str(cache),
        "seconds": _LISTING_SECONDS,
    }
    with NetworkChild(object_worker.fetch, request, _key(address)) as child:
        plan = child.message()
        objects = plan["objects"]
        if record is not None:
            _refuse_changed(address, record["objects"], objects)
        sizes = {key: objects[key]["size"] for key in plan["missing"]}
        if sizes:
            say(_fetching(address, sizes, where))
        child.go_on()
        folder = Path(child.followed(sum(sizes.values()))["folder"])
    return [folder / key for key in objects], {"endpoint": where, "objects": objects}


def endpoint(scheme: str) -> str:
    """Names the store by its address, which the environment may set; without a password in it."""
    names = {"s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"), "gs": ("STORAGE_EMULATOR_HOST",)}[scheme]
    address = next(filter(None, map(os.environ.get, names)), None)
    return _USER.sub("", address) if address else {"s3": "Amazon S3", "gs": "Google Cloud Storage"}[scheme]


def _refuse_changed(
    address: DataAddress, recorded: Mapping[str, SourceRecord], objects: Mapping[str, SourceRecord]
) -> None:
    changed = []
    for key, old in recorded.items():
        name = f"{address.scheme}://{address.container}/{key}"
        if (new := objects.get(key)) is None:
            changed.append(f"{name} is gone since the run began")
        elif new != old:
            tags = f"etag {printable(old['etag'])} -> {printable(new['etag'])}"
            changed.append(f"{name} has changed since the run began ({tags})")
    if changed:
        raise ChangedObject(f"{_key(address)}: {line}" for line in changed)


def _key(address: DataAddress) -> str:
    return f"data.path={address.text}"


def _fetching(address: DataAddress, sizes: Mapping[str, int], where: str) -> str:
    amount = f"{counted(len(sizes), 'file')}, {size(sum(sizes.values()))}"
    return f"fetching {address.text}: {amount}, from {where}"


def _cached(address: DataAddress, record: SourceRecord) -> list[Path]:
    """The recorded files; empty if one is not in the cache, or is not what it was."""
    home = cache_folder() / entry_name("dataset", address.container) / "snapshots" / record["commit"]
    files = {home / file: digest for file, digest in record["files"].items()}
    return [*files] if all(_has(file, digest) for file, digest in files.items()) else []


def _has(file: Path, digest: str) -> bool:
    """True if a file has a digest of `file_digest`."""
    try:
        return file_digest(file, digest.partition(":")[0]) == digest
    except OSError:
        return False
