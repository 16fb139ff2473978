"""Requests that a server must refuse, each with its status: of other sites, too large, without a key."""

from __future__ import annotations

from harness.http_answers import faults
from harness.http_mutations import JSON, multipart, request_bytes
from harness.watched_server import Findings, WatchedServer

_FORM = "multipart/form-data; boundary=limit"
_HOST = b"Host: localhost"
_TOKENIZE = request_bytes("POST", "/v1/tokenize", b'{"prompt": "a"}')


def _chunked(path: str, kind: str, content: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
    head += "Transfer-Encoding: chunked\r\n\r\n"
    parts = [content[at : at + 50_000] for at in range(0, len(content), 50_000)]
    return head.encode() + b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def check_doors(watched: WatchedServer, findings: Findings) -> None:
    """What pages of other sites may try from a browser is refused, and CORS is off."""
    for what, wire in {
        "Host: other.example": request_bytes("GET", "/v1/models"),
        "Host: localhost.other.example:80": _TOKENIZE,
        "Host: localhost\r\nSec-Fetch-Site: cross-site\r\nOrigin: http://other.example": _TOKENIZE,
        "Host: localhost\r\nSec-Fetch-Site: cross-site": request_bytes("POST", "/v1/files", b"x"),
        "Host: localhost\r\nOrigin: http://other.example": request_bytes("POST", "/v1/batches/x/cancel"),
        "Host: localhost\r\nOrigin: null": request_bytes("POST", "/v1/files", b"x"),
    }.items():
        _expect(watched, findings, what, wire.replace(_HOST, what.encode()), 403)
    asked = b"OPTIONS /v1/tokenize HTTP/1.1\r\nHost: localhost\r\nOrigin: http://other.example\r\n"
    asked += b"Access-Control-Request-Method: POST\r\n\r\n"
    for answer in watched.send(asked).answers:
        for fault in faults(answer, "OPTIONS", []):
            findings.add(fault, "a preflight", asked)


def check_bounds(watched: WatchedServer, findings: Findings, max_body: int, max_file: int) -> None:
    """Bodies that are too large are refused, and the refusal can be read though the body is not."""
    text = b'{"prompt": "' + b"a" * max_body + b'"}'
    file = multipart(b"a" * (max_file + (1 << 17)), "a")
    for what, wire in {
        "a body": request_bytes("POST", "/v1/completions", text),
        "a chunked body": _chunked("/v1/completions", JSON, text),
        "an upload": request_bytes("POST", "/v1/files", file, _FORM),
        "a chunked upload": _chunked("/v1/files", _FORM, file),
        "a body of many MB": request_bytes("POST", "/v1/completions", text + b" " * 20_000_000),
    }.items():
        _expect(watched, findings, f"{what}, too large", wire, 413)


def check_key(watched: WatchedServer, findings: Findings, key: str) -> None:
    """Nothing but /health is told to those that have no key, or a part of it."""
    for path in ("/metrics", "/v1/models", "/v1/files", "/", "/ready", "/v1/nothing"):
        for given in (f"Bearer {key[:-1]}", f"Bearer {key}x", key, "Basic Og==", f"Digest {key}", "x"):
            wire = request_bytes("GET", path).replace(_HOST, _HOST + b"\r\nAuthorization: " + given.encode())
            _expect(watched, findings, f"{path} with {given}", wire, 401)


def _expect(watched: WatchedServer, findings: Findings, what: str, wire: bytes, status: int) -> None:
    answered = watched.send(wire)
    if not answered.answers:
        findings.add(f"no answer to what must be refused: {what}", answered.ended)
    elif (found := answered.answers[0].status) != status:
        findings.add(f"not refused: {what}", f"{found} instead of {status}", wire[:4000])
    elif answered.answers[0].body.startswith(b"{"):
        for fault in faults(answered.answers[0], "POST", []):
            findings.add(fault, what)
