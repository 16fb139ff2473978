"""Requests to `mindbatch serve`: a right one for each route, and changes of its JSON, form and bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from fuzz.mutations import of_bytes, of_json

JSON = "application/json"
_FORM = "multipart/form-data; boundary=limit"
_MESSAGES = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hi"}]
_TOOL = {"name": "add", "description": "Adds", "parameters": {"type": "object", "properties": {}}}
_SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
_CHAT: dict[str, Any] = {
    "model": "tiny", "messages": _MESSAGES, "max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "seed": 1,
    "n": 2, "stop": ["x"], "logprobs": True, "top_logprobs": 2, "stream": True, "metadata": {"a": "b"},
    "stream_options": {"include_usage": True}, "tools": [{"type": "function", "function": _TOOL}],
    "tool_choice": "auto", "user": "me", "chat_template_kwargs": {"a": 1}, "logit_bias": {"5": 1},
}  # fmt: skip
_COMPLETION: dict[str, Any] = {
    "model": "tiny", "prompt": ["one two", [5, 6, 7]], "max_tokens": 3, "n": 2, "temperature": 0,
    "echo": True,
    "logprobs": 1, "stop": "x", "presence_penalty": 0.5, "guided_regex": "a{2}", "repetition_penalty": 1.1,
}  # fmt: skip
_RESPONSE: dict[str, Any] = {
    "model": "tiny", "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
    "instructions": "Be brief", "max_output_tokens": 3, "store": True, "metadata": {"a": "b"},
    "tools": [{"type": "function", **_TOOL}], "reasoning": {"effort": "low"}, "temperature": 0.5,
    "text": {"format": {"type": "json_schema", "name": "one", "schema": _SCHEMA}}, "stream": False,
}  # fmt: skip
_NAMES = (
    "../../planted", "/tmp/planted", "..", "a\\..\\planted", "\x1b[2J", "a\nb", "n\0l", "", "界" * 300,
    "con", "%2e%2e%2fplanted", "\udcff", '"; x="', "file-" + "0" * 24 + ".json",
)  # fmt: skip
_TARGETS = (
    "/v1/%2e%2e/etc/passwd", "/v1/files/..%2f..%2fetc%2fpasswd/content", "/v1/files/%2e%2e/content",
    "/../../etc/passwd", "//v1/models", "/v1/files/%00/content", "/v1/files/%0a%1b[2J", "/%ff%fe", "*",
    "http://other/v1/models", "/v1/models/%1b[2J%0d%0ax: y", "/v1/files?limit=" + "9" * 5000, "/v1/files/",
    "/v1/files?after=%00&order=x", "/v1/batches?limit=-1", "/v1/batches?limit=%F0%9F%98%80", "/v1/batches/x",
    "/v1/batches/batch_" + "0" * 24 + "/cancel", "/v1/files?" + "&".join(f"k{n}=1" for n in range(3000)),
    "/" + "a" * 3000, "/" + "a/" * 3000, "/v1/models/" + "a" * 60_000, "/metrics", "/ready", "/health", "/",
    "/v1/files/file-" + "0" * 24, "/v1/models/tiny", "/v1/models", "/v1/files", "/v1/batches",
)  # fmt: skip
_METHODS = (
    "GET",
    "GET",
    "GET",
    "POST",
    "DELETE",
    "HEAD",
    "PUT",
    "OPTIONS",
    "CONNECT",
    "PATCH",
    "get",
    "X" * 99,
)
_HEADERS = (
    ("content-type", "text/plain"), ("content-type", "application/x-www-form-urlencoded"),
    ("content-type", ""),
    ("content-type", "application/json; charset=utf-16"), ("authorization", "Bearer \xff"),
    ("range", "bytes=0-"),
    ("authorization", "Basic =="), ("authorization", "x" * 5000), ("range", "bytes=z"), ("range",
    "bytes=9-1"),
    ("range", "bytes=" + ",".join(f"{n}-{n}" for n in range(1000))), ("expect", "100-continue"),
    ("connection", "close"), ("upgrade", "websocket"), ("cookie", "a=" + "b" * 9000), ("if-range", "x"),
    ("origin", "http://other.example"), ("x-forwarded-for", "1.2.3.4"), ("accept-encoding", "gzip"),
    ("content-encoding", "gzip"), ("content-type", "multipart/form-data"), ("te", "trailers"),
    ("content-type", "multipart/form-data; boundary=" + "b" * 300), ("x-request-id", "\x80"),
)  # fmt: skip
_RANGES = (
    "bytes=0-",
    "bytes=3-9",
    "bytes=-5",
    "bytes=z",
    "bytes=9-1",
    "bytes=99999-",
    "lines=0-1",
    "bytes=0-1,3-4",
)


@dataclass(frozen=True)
class Sent:
    """A request, and the bytes that go over the wire.

    count: answers that must come; None where its framing is damaged, so that any may come, or the end.
    """

    method: str
    target: str
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    wire: bytes = b""
    count: int | None = 1


def mutated(random: Random, files: list[str], batches: list[str]) -> Sent:
    """A request with changes. files, batches: identifiers that there are."""
    sent = _valid(random, files) if random.random() < 0.85 else _other_target(random, files, batches)
    if sent.body and random.random() < 0.8:
        sent = replace(sent, body=_changed_body(random, sent))
    if random.random() < 0.2:
        added = tuple(random.choice(_HEADERS) for _ in range(random.choice((1, 1, 2, 5))))
        names = [name for name, _ in added]
        sent = replace(sent, headers=(*(pair for pair in sent.headers if pair[0] not in names), *added))
    sent = replace(sent, wire=_wire(sent))
    return random.choice(_FRAMINGS)(random, sent) if random.random() < 0.25 else sent


def multipart(content: bytes, filename: str, purpose: str = "batch") -> bytes:
    """The form of an upload."""
    name = filename.replace('"', "%22").encode("utf-8", "surrogateescape")
    head = b'--limit\r\ncontent-disposition: form-data; name="purpose"\r\n\r\n' + purpose.encode()
    head += b'\r\n--limit\r\ncontent-disposition: form-data; name="file"; filename="' + name + b'"\r\n'
    return head + b"content-type: application/jsonl\r\n\r\n" + content + b"\r\n--limit--\r\n"


def request_bytes(method: str, target: str, body: bytes = b"", content_type: str = JSON) -> bytes:
    """A request that is right."""
    return _wire(Sent(method, target, body, (("content-type", content_type),)))


def _valid(random: Random, files: list[str]) -> Sent:
    json_type = (("content-type", JSON),)
    match random.randrange(10):
        case 0 | 1:
            return Sent("POST", "/v1/chat/completions", _some(random, _CHAT, "messages"), json_type)
        case 2 | 3:
            return Sent("POST", "/v1/completions", _some(random, _COMPLETION, "prompt"), json_type)
        case 4:
            return Sent("POST", "/v1/responses", _some(random, _RESPONSE, "input"), json_type)
        case 5:
            body: dict[str, Any] = random.choice(({"prompt": "one two"}, {"messages": _MESSAGES}))
            body = {"model": "tiny", "add_special_tokens": True, **body}
            return Sent("POST", "/v1/tokenize", json.dumps(body).encode(), json_type)
        case 6:
            return Sent("POST", "/v1/detokenize", b'{"model": "tiny", "tokens": [5, 6, 7]}', json_type)
        case 7:
            form = multipart(batch_line(0) * 2, random.choice((*_NAMES, "rows.jsonl")))
            return Sent("POST", "/v1/files", form, (("content-type", _FORM),))
        case 8:
            ranges = (("range", random.choice(_RANGES)),)
            return Sent("GET", f"/v1/files/{files[0]}/content", headers=ranges)
    body = {"input_file_id": random.choice(files), "endpoint": "/v1/completions", "completion_window": "24h"}
    return Sent("POST", "/v1/batches", json.dumps({**body, "metadata": {"a": "b"}}).encode(), json_type)


def batch_line(number: int) -> bytes:
    """A line of a batch that is right."""
    prompt = f"Count from {number % 9}: one, two,"
    body = {"prompt": prompt, "max_tokens": 20, "temperature": 1.2 * (number % 2)}
    line = {"custom_id": f"row-{number}", "method": "POST", "url": "/v1/completions", "body": body}
    return json.dumps(line).encode() + b"\n"


def _some(random: Random, body: dict[str, Any], always: str) -> bytes:
    """The body with a part of its keys, so that fewer of them are refused for another's sake."""
    chosen = {name: value for name, value in body.items() if name == always or random.random() < 0.3}
    chosen |= {name: 3 for name in ("max_tokens", "max_output_tokens") if name in body}
    if "stream_options" in chosen:
        chosen["stream"] = True
    if "top_logprobs" in chosen:
        chosen["logprobs"] = True
    return json.dumps(chosen).encode()


def _other_target(random: Random, files: list[str], batches: list[str]) -> Sent:
    name, batch = random.choice(files), random.choice(batches)
    own = (f"/v1/files/{name}", f"/v1/files/{name}/content", f"/v1/batches/{batch}", f"/v1/batches/{batch}x")
    target = random.choice((*_TARGETS, *own))
    if random.random() < 0.1:
        target = "".join(map(chr, of_bytes(random, target.encode())))
    body = random.choice((b"", b"", b"{}", b"x" * 2000))
    method = random.choice(_METHODS)
    if method == "DELETE" and target in own:
        target += "x"  # the others need it
    is_target = target.isascii() and target.isprintable() and " " not in target and target
    return Sent(method, target, body, (("content-type", JSON),), count=1 if is_target else None)


def _changed_body(random: Random, sent: Sent) -> bytes:
    if random.random() < 0.01:
        return sent.body + b" " * 4_000_000  # larger than any body may be
    is_json = ("content-type", JSON) in sent.headers and sent.body[:1] == b"{"
    return (of_json if is_json else of_bytes)(random, sent.body)


def _wire(sent: Sent, body: bytes | None = None, *framing: tuple[str, str]) -> bytes:
    """The bytes of a request; the framing is the body's length if none is given."""
    pairs = [("Host", "localhost"), *sent.headers, *(framing or [("Content-Length", str(len(sent.body)))])]
    lines = [f"{sent.method} {sent.target} HTTP/1.1", *(f"{name}: {value}" for name, value in pairs)]
    head = "\r\n".join((*lines, "", "")).encode("latin-1", "replace")
    return head + (sent.body if body is None else body)


def _chunks(random: Random, content: bytes) -> bytes:
    sent, at = b"", 0
    while at < len(content):
        size = random.choice((1, 7, 100, 5000)) if len(content) < 20_000 else 5000
        part = content[at : at + size]
        sent, at = sent + b"%x\r\n" % len(part) + part + b"\r\n", at + size
    return sent


def _chunked(random: Random, sent: Sent) -> Sent:
    body = _chunks(random, sent.body) + b"0\r\n\r\n"
    return replace(sent, wire=_wire(sent, body, ("Transfer-Encoding", "chunked")))


def _badly_chunked(random: Random, sent: Sent) -> Sent:
    bad = (b"zz\r\n", b"-1\r\n", b"f" * 30 + b"\r\n", b"5;" + b"x" * 9000 + b"\r\n", b"\r\n", b"5\r\nabc\r\n")
    body = _chunks(random, sent.body[:9000]) + random.choice(bad) + b"0\r\n\r\n"
    return replace(sent, wire=_wire(sent, body, ("Transfer-Encoding", "chunked")), count=None)


def _wrong_length(random: Random, sent: Sent) -> Sent:
    length = random.choice(
        (str(len(sent.body) + 1), "0", "-1", "x", "1e3", "9" * 30, "9" * 5000, "+5", "5, 5")
    )
    return replace(sent, wire=_wire(sent, None, ("Content-Length", length)), count=None)


def _two_framings(random: Random, sent: Sent) -> Sent:
    body = _chunks(random, sent.body) + b"0\r\n\r\n"
    framing = (("Transfer-Encoding", "chunked"), ("Content-Length", str(len(sent.body))))
    return replace(sent, wire=_wire(sent, body, *framing), count=None)


def _pipelined(random: Random, sent: Sent) -> Sent:
    if (
        sent.method not in ("GET", "POST")
        or sent.count is None
        or any(n == "expect" for n, _ in sent.headers)
    ):
        return sent
    count = random.choice((2, 3))
    return replace(sent, wire=sent.wire * count, count=-count)


def _damaged(random: Random, sent: Sent) -> Sent:
    return replace(sent, wire=of_bytes(random, sent.wire), count=None)


def _cut(random: Random, sent: Sent) -> Sent:
    return replace(sent, wire=sent.wire[: random.randrange(len(sent.wire))], count=None)


def _garbage(random: Random, sent: Sent) -> Sent:
    kinds = (
        random.randbytes(random.choice((1, 30, 3000, 200_000))),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\r\n" * 1000, b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 20_000,
        b"GET / HTTP/1.1\r\nx: " + b"y" * 200_000,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n x: folded\r\n\r\n", b"\0" * 500, b"GET  /  HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.0\r\n\r\n", b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n", b"{}" * 3000,
    )  # fmt: skip
    return replace(sent, method="GET", wire=random.choice(kinds), count=None)


_FRAMINGS = (
    _chunked, _chunked, _badly_chunked, _wrong_length, _two_framings, _pipelined, _damaged, _damaged, _cut,
    _garbage,
)  # fmt: skip
