"""Two object stores on loopback, which answer as S3 and Google Cloud Storage do, and can misbehave."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from loopback_server import LoopbackServer, QuietHandler

BUCKET = "bucket"


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


@dataclass
class Store(LoopbackServer):
    """objects: of its one bucket, by key.

    status: the answer to everything, in place of 200. cut_uploads, cut_downloads: number of those whose
    connection ends in the middle. spoils: uploads are stored with other bytes.
    is_opaque: it tells no digests.
    gate: an upload of more than gated_bytes is read to its middle, and the rest after this.
    """

    objects: dict[str, bytes] = field(default_factory=dict)
    status: int = 200
    cut_uploads: int = 0
    cut_downloads: int = 0
    spoils: bool = False
    is_opaque: bool = False
    gate: Event | None = None
    gated_bytes: int = 1 << 20
    requests: list[str] = field(default_factory=list)
    parts: dict[str, dict[int, bytes]] = field(default_factory=dict)
    etags: dict[str, str] = field(default_factory=dict)
    is_waiting: Event = field(default_factory=Event)

    @property
    def uploads(self) -> list[str]:
        """The requests that bring content."""
        return [line for line in self.requests if line.startswith(("PUT", "POST"))]

    def put(self, key: str, content: bytes, etag: str | None = None) -> str:
        """Stores an object; returns its ETag."""
        content = content[:-1] + b"?" if self.spoils else content
        self.objects[key] = content
        etag = md5(content) if etag is None or self.spoils else etag
        self.etags[key] = f"0123456789abcdef-{len(content)}" if self.is_opaque else etag
        return self.etags[key]

    def etag(self, key: str) -> str:
        return self.etags.get(key, md5(self.objects[key]))


class _Handler(QuietHandler):
    served: Store

    def answer(self) -> None:
        store = self.served
        store.requests.append(f"{self.command} {self.path}")
        length = int(self.headers.get("Content-Length") or 0)
        if length and store.cut_uploads > 0:
            store.cut_uploads -= 1
            self.rfile.read(length // 2)
            self.close_connection = True
            self.connection.close()
            return
        body = b""
        if store.gate is not None and length > store.gated_bytes:
            body = self.rfile.read(length // 2)
            store.is_waiting.set()
            store.gate.wait()
        with suppress(OSError):
            body += self.rfile.read(length - len(body))
        if len(body) < length:  # who sent it was killed
            self.close_connection = True
            return
        if self.headers.get("Content-Encoding") == "aws-chunked":
            body = _unchunked(body)
        address = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(address.query, keep_blank_values=True).items()}
        if store.status != 200:
            return self._refuse(store.status)
        self._answer_to(unquote(address.path), query, body)

    def _answer_to(self, path: str, query: dict[str, str], body: bytes) -> None:
        raise NotImplementedError

    def _refuse(self, status: int) -> None:
        raise NotImplementedError

    def _content(self, content: bytes, about: Mapping[str, str]) -> None:
        start = int((self.headers.get("Range") or "bytes=0-")[6:].split("-")[0])
        end = (self.headers.get("Range") or "-").rpartition("-")[2]
        last = min(int(end), len(content) - 1) if end else len(content) - 1
        headers = dict(about)
        if "Range" in self.headers:
            headers["Content-Range"] = f"bytes {start}-{last}/{len(content)}"
        body = content[start : last + 1]
        if self.command == "GET" and self.served.cut_downloads > 0:
            self.served.cut_downloads -= 1
            headers["Content-Length"] = str(len(body))
            body = body[: len(body) // 2]
            self.close_connection = True
        self._answer(206 if "Range" in self.headers else 200, body, headers)

    def _answer(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            with suppress(OSError):
                self.wfile.write(body)


def _unchunked(body: bytes) -> bytes:
    """Takes the chunks out of a body in S3's own encoding."""
    content = b""
    while body:
        head, _, body = body.partition(b"\r\n")
        if (size := int(head.partition(b";")[0], 16)) == 0:
            break
        content, body = content + body[:size], body[size + 2 :]
    return content


class _S3Handler(_Handler):
    def _answer_to(self, path: str, query: dict[str, str], body: bytes) -> None:
        store = self.served
        bucket, _, key = path[1:].partition("/")
        if bucket != BUCKET:
            return self._refuse(404, "NoSuchBucket")
        match self.command, key, query:
            case "GET", "", _:
                self._list(query)
            case "GET" | "HEAD", _, _ if key in store.objects:
                etag = {"ETag": f'"{store.etag(key)}"', "Last-Modified": "Sun, 29 Nov 2026 12:00:00 GMT"}
                self._content(store.objects[key], etag)
            case "PUT", _, {"partNumber": number, "uploadId": upload}:
                store.parts[upload][int(number)] = body
                self._answer(200, headers={"ETag": f'"{md5(body)}"'})
            case "PUT", _, _:
                self._answer(200, headers={"ETag": f'"{store.put(key, body)}"'})
            case "POST", _, {"uploads": _}:
                upload = f"upload{len(store.parts)}"
                store.parts[upload] = {}
                self._xml("InitiateMultipartUploadResult", f"<UploadId>{upload}</UploadId>")
            case "POST", _, {"uploadId": upload}:
                parts = [content for _, content in sorted(store.parts.pop(upload).items())]
                digest = md5(b"".join(hashlib.md5(part).digest() for part in parts))
                etag = store.put(key, b"".join(parts), f"{digest}-{len(parts)}")
                self._xml("CompleteMultipartUploadResult", f"<ETag>{etag}</ETag>")
            case "DELETE", _, _ if key in store.objects:
                del store.objects[key]
                self._answer(204)
            case "DELETE", _, {"uploadId": upload}:
                store.parts.pop(upload, None)
                self._answer(204)
            case _:
                self._refuse(404, "NoSuchKey")

    def _list(self, query: dict[str, str]) -> None:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        contents, folders = "", set()
        for key, content in sorted(self.served.objects.items()):
            if not key.startswith(prefix):
                continue
            below, cut, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            if cut:
                folders.add(f"{prefix}{below}/")
                continue
            contents += (
                f"<Contents><Key>{escape(key)}</Key><Size>{len(content)}</Size>"
                f"<ETag>{self.served.etag(key)}</ETag>"
                "<LastModified>2026-11-29T12:00:00.000Z</LastModified></Contents>"
            )
        contents += "".join(f"<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>" for name in folders)
        self._xml("ListBucketResult", f"<IsTruncated>false</IsTruncated>{contents}")

    def _xml(self, name: str, content: str, status: int = 200) -> None:
        self._answer(status, f"<{name}>{content}</{name}>".encode(), {"Content-Type": "application/xml"})

    def _refuse(self, status: int, code: str = "") -> None:
        code = code or {403: "AccessDenied", 503: "ServiceUnavailable"}.get(status, "NoSuchKey")
        self._xml("Error", f"<Code>{code}</Code><Message>{code}</Message>", status)


class _GoogleHandler(_Handler):
    def _answer_to(self, path: str, query: dict[str, str], body: bytes) -> None:
        answers: tuple[tuple[str, Callable[..., None]], ...] = (
            (rf"/storage/v1/b/{BUCKET}/o/(.+)", self._about),
            (rf"/storage/v1/b/{BUCKET}/o/?", self._list),
            (rf"/download/storage/v1/b/{BUCKET}/o/(.+)", self._download),
            (rf"/upload/storage/v1/b/{BUCKET}/o", self._upload),
            (r"/session/(\w+)/(.+)", self._session),
        )
        for pattern, method in answers:
            if match := re.fullmatch(pattern, path):
                return method(query, body, *match.groups())
        return self._refuse(404)

    def _object(self, key: str) -> dict[str, Any]:
        store, content = self.served, self.served.objects[key]
        digest = base64.b64encode(bytes.fromhex(store.etag(key))).decode() if not store.is_opaque else ""
        about: dict[str, Any] = {
            "name": key,
            "size": str(len(content)),
            "etag": f"tag-{store.etag(key)}",
            "generation": str(int(md5(content)[:8], 16)),
            "updated": "2026-11-29T12:00:00.000Z",
            "timeCreated": "2026-11-29T12:00:00.000Z",
        }
        return about | ({"md5Hash": digest} if digest else {})

    def _about(self, query: dict[str, str], body: bytes, key: str) -> None:
        if key not in self.served.objects:
            return self._refuse(404)
        if self.command == "DELETE":
            del self.served.objects[key]
            return self._answer(204)
        return self._json(self._object(key))

    def _list(self, query: dict[str, str], body: bytes) -> None:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        items, prefixes = [], set()
        for key in sorted(self.served.objects):
            if not key.startswith(prefix):
                continue
            below, cut, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            if cut:
                prefixes.add(f"{prefix}{below}/")
            else:
                items.append(self._object(key))
        self._json({"items": items, "prefixes": sorted(prefixes)})

    def _download(self, query: dict[str, str], body: bytes, key: str) -> None:
        if key not in self.served.objects:
            return self._refuse(404)
        return self._content(self.served.objects[key], {})

    def _upload(self, query: dict[str, str], body: bytes) -> None:
        store = self.served
        if query["uploadType"] == "resumable":
            upload = f"upload{len(store.parts)}"
            store.parts[upload] = {}
            location = f"{store.address}/session/{upload}/{query['name']}"
            return self._answer(200, headers={"Location": location})
        boundary = re.search('boundary="?([^";]+)', self.headers["Content-Type"])
        assert boundary is not None
        _, head, rest = body.split(f"--{boundary[1]}".encode(), 2)
        content = rest.partition(b"\n\n")[2].rpartition(f"\n--{boundary[1]}--".encode())[0]
        name = json.loads(head.partition(b"\n\n")[2])["name"]
        store.put(name, content)
        return self._json(self._object(name))

    def _session(self, query: dict[str, str], body: bytes, upload: str, key: str) -> None:
        store = self.served
        if self.command == "DELETE":
            store.parts.pop(upload, None)
            return self._answer(499)
        match = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", self.headers["Content-Range"])
        assert match is not None
        start, end, size = map(int, match.groups())
        store.parts[upload][start] = body
        if end + 1 < size:
            return self._answer(308, headers={"Range": f"bytes=0-{end}"})
        store.put(key, b"".join(part for _, part in sorted(store.parts.pop(upload).items())))
        return self._json(self._object(key))

    def _json(self, content: object) -> None:
        self._answer(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _refuse(self, status: int) -> None:
        message = {"error": {"code": status, "message": f"refused with {status}"}}
        self._answer(status, json.dumps(message).encode(), {"Content-Type": "application/json"})


class S3Store(Store):
    """S3, of which the signatures are not checked."""

    scheme = "s3"
    handler = _S3Handler


class GoogleStore(Store):
    """Google Cloud Storage's JSON interface, as its emulators have it."""

    scheme = "gs"
    handler = _GoogleHandler
