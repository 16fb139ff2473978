"""A hub on loopback with one dataset: revisions, trees, files, commits with large files; can misbehave."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from hub_server import git_digest
from loopback_server import LoopbackServer, QuietHandler

_LFS = (".parquet", ".jsonl")


def commit_of(files: Mapping[str, bytes]) -> str:
    return hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()


@dataclass
class DatasetHub(LoopbackServer):
    """files: of the main branch; `commit` makes another of them.

    token: that a request must have. may_write: whether it may write. page: entries of a page of a tree.
    store: the address of another server, to which requests for large files are redirected.
    lists: entries of the tree in place of the files. cut_uploads: number of uploads whose connection ends
    in the middle. spoils: large files are stored with other bytes. statuses: answers by the end of a path.
    """

    files: dict[str, bytes]
    name: str = "org/data"
    token: str | None = None
    may_write: bool = True
    page: int = 3
    store: str | None = None
    lists: list[dict[str, Any]] | None = None
    cut_uploads: int = 0
    spoils: bool = False
    statuses: dict[str, int] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)

    def __enter__(self) -> DatasetHub:
        self.main = ""
        self.commit(self.files)
        return super().__enter__()

    def commit(self, files: Mapping[str, bytes]) -> str:
        self.main = commit_of(files)
        self.commits[self.main] = dict(files)
        return self.main

    def resolved(self, revision: str) -> str | None:
        revision = self.main if revision == "main" else revision
        return revision if revision in self.commits else None

    def entries(self, commit: str) -> list[dict[str, Any]]:
        if self.lists is not None:
            return self.lists
        folders = {name.rpartition("/")[0] for name in self.commits[commit]} - {""}
        listed: list[dict[str, Any]] = [
            {"type": "directory", "path": name, "oid": "0" * 40} for name in folders
        ]
        return listed + [entry_of(name, content) for name, content in self.commits[commit].items()]


def entry_of(name: str, content: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": name, "size": len(content), "oid": git_digest(content)}
    if name.endswith(_LFS):
        digest = hashlib.sha256(content).hexdigest()
        entry["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 134}
    return entry


class _Handler(QuietHandler):
    served: DatasetHub

    def answer(self) -> None:
        hub = self.served
        hub.requests.append(f"{self.command} {self.path}")
        hub.tokens.append(self.headers.get("Authorization"))
        address = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        if self.command == "PUT" and hub.cut_uploads > 0:
            hub.cut_uploads -= 1
            self.rfile.read(length // 2)
            self.close_connection = True
            self.connection.close()
            return
        body = self.rfile.read(length)
        for end, status in hub.statuses.items():
            if end in address.path:
                return self._answer(status, b"{}")
        if address.path.startswith("/lfs/"):
            return self._lfs(address.path, body)
        if hub.token is not None and self.headers.get("Authorization") != f"Bearer {hub.token}":
            return self._answer(401, b"{}", {"X-Error-Code": "RepoNotFound"})
        api = rf"/api/datasets/{hub.name}"
        for pattern, method in (
            (rf"{api}(?:/revision/([^/]+))?", self._info),
            (rf"{api}/tree/([^/]+)", self._tree),
            (rf"{api}/paths-info/([^/]+)", self._paths_info),
            (rf"/datasets/{hub.name}/resolve/([^/]+)/(.*)", self._file),
            (rf"{api}/preupload/([^/]+)", self._preupload),
            (rf"/datasets/{hub.name}\.git/info/lfs/objects/batch", self._batch),
            (rf"{api}/commit/([^/]+)", self._commit),
        ):
            if match := re.fullmatch(pattern, address.path):
                return method(body, parse_qs(address.query), *match.groups())
        return self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def _commit_of(self, revision: str | None) -> str | None:
        commit = self.served.resolved(unquote(revision or "main"))
        if commit is None:
            self._answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        return commit

    def _info(self, body: bytes, query: dict[str, list[str]], revision: str | None) -> None:
        if commit := self._commit_of(revision):
            self._json({"id": self.served.name, "sha": commit})

    def _tree(self, body: bytes, query: dict[str, list[str]], revision: str) -> None:
        if not (commit := self._commit_of(revision)):
            return
        entries, start = self.served.entries(commit), int(query.get("cursor", ["0"])[0])
        end = start + self.served.page
        more = f'<{self.served.address}{urlsplit(self.path).path}?recursive=True&cursor={end}>; rel="next"'
        self._json(entries[start:end], {"Link": more} if end < len(entries) else {})

    def _paths_info(self, body: bytes, query: dict[str, list[str]], revision: str) -> None:
        if not (commit := self._commit_of(revision)):
            return
        form = body.decode()
        paths = json.loads(form)["paths"] if form.startswith("{") else parse_qs(form).get("paths", [])
        self._json([entry for entry in self.served.entries(commit) if entry["path"] in paths])

    def _file(self, body: bytes, query: dict[str, list[str]], revision: str, path: str) -> None:
        hub, name = self.served, unquote(path)
        commit = hub.resolved(revision)
        if commit is None or name not in hub.commits[commit]:
            return self._answer(404, b"{}", {"X-Error-Code": "EntryNotFound"})
        content = hub.commits[commit][name]
        is_large = name.endswith(_LFS)
        digest = hashlib.sha256(content).hexdigest() if is_large else git_digest(content)
        about = {"X-Repo-Commit": commit, "X-Linked-Etag": f'"{digest}"', "ETag": f'"{digest}"'}
        if is_large and hub.store is not None:
            return self._answer(302, b"", {**about, "Location": f"{hub.store}{self.path}"})
        start = int((self.headers.get("Range") or "bytes=0-")[6:].split("-")[0])
        if "Range" in self.headers:
            about["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        return self._answer(206 if "Range" in self.headers else 200, content[start:], about)

    def _preupload(self, body: bytes, query: dict[str, list[str]], revision: str) -> None:
        if not self.served.may_write:
            return self._answer(403, b'{"error": "this token cannot write"}')
        if not (commit := self._commit_of(revision)):
            return
        files = self.served.commits[commit]
        answers = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["path"].endswith(_LFS) else "regular",
                "shouldIgnore": False,
                "oid": git_digest(files[file["path"]]) if file["path"] in files else None,
            }
            for file in json.loads(body)["files"]
        ]
        return self._json({"files": answers})

    def _batch(self, body: bytes, query: dict[str, list[str]]) -> None:
        where = f"{self.served.address}/lfs"
        objects = [
            {
                **item,
                "actions": {
                    "upload": {"href": f"{where}/{item['oid']}", "header": {}},
                    "verify": {"href": f"{where}/verify", "header": {}},
                },
            }
            for item in json.loads(body)["objects"]
        ]
        self._json({"transfer": "basic", "objects": objects})

    def _lfs(self, path: str, body: bytes) -> None:
        name = path.removeprefix("/lfs/")
        if name != "verify":
            self.served.blobs[name] = body[:-1] + b"?" if self.served.spoils else body
        self._json({})

    def _commit(self, body: bytes, query: dict[str, list[str]], revision: str) -> None:
        hub = self.served
        if not (commit := self._commit_of(revision)):
            return
        files = dict(hub.commits[commit])
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "deletedFile":
                del files[value["path"]]
            elif line["key"] == "lfsFile":
                files[value["path"]] = hub.blobs[value["oid"]]
        new = hub.commit(files)
        url = f"{hub.address}/datasets/{hub.name}/commit/{new}"
        self._json({"commitUrl": url, "commitOid": new, "hookOutput": ""})

    def _json(self, content: object, headers: Mapping[str, str] | None = None) -> None:
        about = {"Content-Type": "application/json", **(headers or {})}
        self._answer(200, json.dumps(content).encode(), about)

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            with suppress(OSError):
                self.wfile.write(body)


DatasetHub.handler = _Handler
