"""A hub on loopback that answers as Hugging Face's and ModelScope's do, and can misbehave."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from urllib.parse import SplitResult, parse_qs, urlsplit

import pytest

from loopback_server import LoopbackServer, QuietHandler

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_GATED = 1 << 20
_LFS = (".safetensors", ".bin")


def git_digest(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def use_empty_cache(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Lets a test have a cache of its own, no token, and libraries that fetch nothing; returns the cache."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(home))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return home / "hub"


@dataclass
class Hub(LoopbackServer):
    """files: of its one model, by name.

    cut_after: bytes of a large file after which each connection ends. sent: what is sent in place of a
    file. sizes: what is said in place of a file's size. token: that a request must have. links: files
    that another address has. gate: a large file is sent to its middle, and then what waits for this. lies:
    headers that replace those of a file's answers. lists: what is listed in place of a model. endless: the
    end of the path of what is sent in chunks without end.
    """

    files: Mapping[str, bytes]
    name: str = "org/model"
    commit: str = COMMIT
    cut_after: int | None = None
    sent: dict[str, bytes] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    token: str | None = None
    status: int = 200
    links: dict[str, str] = field(default_factory=dict)
    gate: Event | None = None
    lies: dict[str, str] = field(default_factory=dict)
    lists: bytes | None = None
    endless: str | None = None
    requests: list[str] = field(default_factory=list)

    def listing(self) -> bytes:
        if self.lists is not None:
            return self.lists
        siblings = []
        for name, content in self.files.items():
            size = self.sizes.get(name, len(content))
            entry: dict[str, object] = {"rfilename": name, "size": size, "blobId": git_digest(content)}
            if name.endswith(_LFS):
                digest = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"sha256": digest, "size": size, "pointerSize": 134}
            siblings.append(entry)
        return json.dumps({"id": self.name, "sha": self.commit, "siblings": siblings}).encode()

    def files_of_modelscope(self) -> bytes:
        if self.lists is not None:
            return self.lists
        files = [
            {
                "Path": name,
                "Size": self.sizes.get(name, len(content)),
                "Sha256": hashlib.sha256(content).hexdigest(),
                "Type": "blob",
            }
            for name, content in self.files.items()
        ]
        return json.dumps({"Code": 200, "Success": True, "Data": {"Files": files}}).encode()


class _Handler(QuietHandler):
    served: Hub

    def answer(self) -> None:
        hub = self.served
        hub.requests.append(f"{self.command} {self.path}")
        if hub.status != 200:
            return self._answer(hub.status, b"{}")
        if hub.endless is not None and self.path.endswith(hub.endless):
            return self._without_end()
        if self.path.startswith(f"/api/v1/models/{hub.name}/repo"):
            return self._modelscope(urlsplit(self.path))
        if hub.token is not None and self.headers.get("Authorization") != f"Bearer {hub.token}":
            return self._answer(401, b"{}", {"X-Error-Code": "RepoNotFound"})
        if re.fullmatch(rf"/api/models/{hub.name}(/revision/(main|{hub.commit}))?(\?.*)?", self.path):
            return self._answer(200, hub.listing(), {"Content-Type": "application/json"})
        match = re.fullmatch(rf"/{hub.name}/resolve/{hub.commit}/(.*)", self.path)
        if match is None or match[1] not in hub.files:
            code = (
                "RepoNotFound" if not self.path.startswith(f"/api/models/{hub.name}") else "RevisionNotFound"
            )
            return self._answer(404, b"{}", {"X-Error-Code": code})
        return self._file(match[1])

    def _modelscope(self, address: SplitResult) -> None:
        hub, query = self.served, parse_qs(address.query)
        if hub.token is not None and f"m_session_id={hub.token}" not in self.headers.get("Cookie", ""):
            return self._answer(404, b'{"Code": 10010205001, "Message": "not found", "Success": false}')
        if query["Revision"] != ["master"]:
            return self._answer(404, b'{"Code": 10010205001, "Message": "not found", "Success": false}')
        if address.path.endswith("/files"):
            return self._answer(200, hub.files_of_modelscope(), {"Content-Type": "application/json"})
        return self._body(query["FilePath"][0], {})

    def _file(self, name: str) -> None:
        hub = self.served
        content = hub.files[name]
        is_large = name.endswith(_LFS)
        etag = hashlib.sha256(content).hexdigest() if is_large else git_digest(content)
        about = {
            "X-Repo-Commit": hub.commit,
            "X-Linked-Size": str(hub.sizes.get(name, len(content))),
            "X-Linked-Etag": f'"{etag}"',
            "ETag": f'"{etag}"',
            **hub.lies,
        }
        if name in hub.links and "x" not in self.headers.get("X-Followed", ""):
            return self._answer(302, b"", {**about, "Location": hub.links[name]})
        return self._body(name, about)

    def _body(self, name: str, about: dict[str, str]) -> None:
        body = self.served.sent.get(name, self.served.files[name])
        start = int((self.headers.get("Range") or "bytes=0-")[6:].split("-")[0])
        status = 206 if "Range" in self.headers else 200
        if status == 206:
            about["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
        return self._answer(status, body[start:], about)

    def _without_end(self) -> None:
        self.send_response(200)
        self.send_header("ETag", f'"{git_digest(self.served.files["config.json"])}"')
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with suppress(OSError):
            while True:
                self.wfile.write(b"100000\r\n" + b" " * (1 << 20) + b"\r\n")

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        hub = self.served
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if hub.cut_after is not None and len(body) > hub.cut_after:
            self.wfile.write(body[: hub.cut_after])
            self.close_connection = True
            return
        if hub.gate is not None and len(body) > _GATED:
            self.wfile.write(body[: len(body) // 2])
            hub.gate.wait()
            body = body[len(body) // 2 :]
        with suppress(OSError):  # who asked was killed
            self.wfile.write(body)


Hub.handler = _Handler
