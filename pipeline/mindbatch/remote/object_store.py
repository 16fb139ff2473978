"""Objects in S3 or Google Cloud Storage by fsspec: found, fetched, uploaded, and checked by digest."""

import base64
import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from mindbatch.hub.listings import Refused, is_plain_path
from mindbatch.io.file_patterns import is_pattern
from mindbatch.io.regular_file import digested

PART_BYTES = 64 << 20
"""Bytes of a part of a large upload, and of what is held in memory of one."""
_MAX_OBJECTS = 10_000
_NUM_THREADS = 16
_TIMEOUT_SECONDS = 30
_MD5 = re.compile(r"[0-9a-f]{32}")
_ENCRYPTED = ("aws:kms", "aws:kms:dsse")
"""Ways of encryption by which the ETag of an object is no digest of its content."""


class StoredObject(NamedTuple):
    """An object as a store has it. etag: changes with the content. version: of a bucket that keeps versions.
    md5: of the content, in hex; None where the store does not tell it.
    """

    size: int
    etag: str
    version: str | None = None
    md5: str | None = None


class ObjectStore:
    """A bucket, with the credentials of the environment. A key is the name of an object in it."""

    def __init__(self, bucket: str) -> None:
        self._bucket = bucket
        self._files = self._open()

    def _open(self) -> Any:
        raise NotImplementedError

    def stat(self, key: str) -> StoredObject | None:
        """Looks an object up; None if there is none."""
        raise NotImplementedError

    def can_write(self, key: str) -> None:
        """Begins an upload and gives it up, which leaves nothing. Raises what the store answers."""
        raise NotImplementedError

    def expected(self, path: Path) -> set[str]:
        """The ETags or digests that an uploaded file may have."""
        return {digest_of(path)}

    def find(self, path: str) -> list[str]:
        """Returns the keys of an object, or of those that fit a pattern, sorted.

        Raises:
            Refused: there is none, or there are too many, or one has a name that is no path.
        """
        if not is_pattern(path):
            return [path]
        matching = self._files.glob(f"{self._bucket}/{path}", detail=True)
        files = (name for name, about in matching.items() if about.get("type") == "file")
        keys = sorted(name.partition("/")[2] for name in files)
        if not keys:
            raise Refused("no object fits this pattern", lasts=True)
        if len(keys) > _MAX_OBJECTS:
            raise Refused(f"more than {_MAX_OBJECTS:,} objects fit this pattern", lasts=True)
        return keys

    def stat_all(self, keys: Sequence[str]) -> dict[str, StoredObject]:
        """Looks up those objects that exist. Raises Refused: a key leads out of a folder."""
        if strange := [key for key in keys if not is_plain_path(key)]:
            raise Refused(f"the key {strange[0][:200]!a} cannot be the name of a file here", lasts=True)
        with ThreadPoolExecutor(_NUM_THREADS) as threads:
            objects = dict(zip(keys, threads.map(self.stat, keys), strict=True))
        return {key: stored for key, stored in objects.items() if stored is not None}

    def fetch(self, key: str, stored: StoredObject, path: Path) -> None:
        """Fetches an object into a file that appears whole.

        Raises:
            Refused: it changed meanwhile, or other bytes came than the store has.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.incomplete")
        self._files.get_file(f"{self._bucket}/{key}", str(partial))
        if self.stat(key) != stored:
            raise Refused(f"{key}: has changed while it was fetched")
        if partial.stat().st_size != stored.size or stored.md5 not in (None, digest_of(partial)):
            partial.unlink()
            raise Refused(f"{key}: other bytes came than the store has; they were removed")
        partial.replace(path)

    def upload(self, path: Path, key: str) -> StoredObject:
        """Uploads a file, and checks size and digest of what the store has then; where it tells no digest, by
        reading it again.

        Raises:
            Refused: it is not what was sent.
        """
        self._put(path, key)
        stored = self.stat(key)
        is_whole = stored is not None and stored.size == path.stat().st_size
        if stored is None or not is_whole or not self._is_same(path, key, stored):
            raise Refused(f"{key}: the store does not have what was sent")
        return stored

    def remove(self, key: str) -> None:
        """Removes an object, if it exists."""
        if self.stat(key) is not None:
            self._files.rm_file(f"{self._bucket}/{key}")

    def _put(self, path: Path, key: str) -> None:
        self._files.put_file(str(path), f"{self._bucket}/{key}", chunksize=PART_BYTES)

    def _is_same(self, path: Path, key: str, stored: StoredObject) -> bool:
        if {stored.md5, stored.etag} & self.expected(path):
            return True
        if stored.md5 is not None:
            return False
        with self._files.open(f"{self._bucket}/{key}", "rb", block_size=PART_BYTES) as remote:
            return digested(hashlib.md5(usedforsecurity=False), remote.read) == digest_of(path)


class S3(ObjectStore):
    """Amazon's S3, or a store that answers alike: AWS_ENDPOINT_URL."""

    def _open(self) -> Any:
        import s3fs

        return s3fs.S3FileSystem(
            use_listings_cache=False,
            skip_instance_cache=True,
            config_kwargs={
                "connect_timeout": _TIMEOUT_SECONDS,
                "read_timeout": _TIMEOUT_SECONDS,
                "retries": {"max_attempts": 3, "mode": "standard"},
            },
        )

    def stat(self, key: str) -> StoredObject | None:
        try:
            head = self._files.call_s3("head_object", Bucket=self._bucket, Key=key)
        except FileNotFoundError:
            return None
        etag = str(head.get("ETag", "")).strip('"')
        is_opaque = head.get("ServerSideEncryption") in _ENCRYPTED or "SSECustomerAlgorithm" in head
        is_digest = _MD5.fullmatch(etag) is not None and not is_opaque
        return StoredObject(
            int(head["ContentLength"]), etag, head.get("VersionId"), etag if is_digest else None
        )

    def can_write(self, key: str) -> None:
        begun = self._files.call_s3("create_multipart_upload", Bucket=self._bucket, Key=key)
        with suppress(Exception):  # what may write need not be allowed this; it has no parts
            self._files.call_s3(
                "abort_multipart_upload", Bucket=self._bucket, Key=key, UploadId=begun["UploadId"]
            )

    def expected(self, path: Path) -> set[str]:
        """Also the ETag of an upload in parts: the MD5 of their MD5s, and their number."""
        parts = [hashlib.md5(part, usedforsecurity=False).digest() for part in _parts(path)]
        of_parts = hashlib.md5(b"".join(parts), usedforsecurity=False).hexdigest()
        return {digest_of(path), f"{of_parts}-{len(parts)}"}


class GoogleStorage(ObjectStore):
    """Google Cloud Storage, or the emulator of STORAGE_EMULATOR_HOST, which takes no credentials."""

    def _open(self) -> Any:
        import gcsfs

        is_emulated = os.environ.get("STORAGE_EMULATOR_HOST") not in (None, "", "default")
        return gcsfs.GCSFileSystem(
            token="anon" if is_emulated else None,
            use_listings_cache=False,
            skip_instance_cache=True,
            requests_timeout=_TIMEOUT_SECONDS,
        )

    def stat(self, key: str) -> StoredObject | None:
        try:
            about = self._files.info(f"{self._bucket}/{key}")
        except FileNotFoundError:
            return None
        if about.get("type") != "file":
            return None
        md5 = base64.b64decode(about["md5Hash"]).hex() if about.get("md5Hash") else None
        return StoredObject(int(about["size"]), str(about.get("etag", "")), about.get("generation"), md5)

    def can_write(self, key: str) -> None:
        from fsspec.asyn import sync
        from gcsfs.core import initiate_upload

        location = sync(self._files.loop, initiate_upload, self._files, self._bucket, key)
        with suppress(Exception):  # the store forgets it after a week
            sync(self._files.loop, self._files._call, "DELETE", location)


STORES: dict[str, type[ObjectStore]] = {"s3": S3, "gs": GoogleStorage}
"""By scheme."""


def digest_of(path: Path) -> str:
    """Returns the MD5 of a file, in hex, as stores tell it."""
    with path.open("rb") as file:
        return digested(hashlib.md5(usedforsecurity=False), file.read)


def _parts(path: Path) -> Iterable[bytes]:
    with path.open("rb") as file:
        while part := file.read(PART_BYTES):
            yield part
