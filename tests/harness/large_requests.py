"""Requests as large as a server takes: a right one for each route, one part of which is as large as can be.

python large_requests.py FOLDER [--requests 300] [--mib 60] [--seed 0] [--only NUMBER]
sends them to a server one after another; while each is answered /health must be, and memory has a bound.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from pathlib import Path
from random import Random
from typing import Any

from harness.http_answers import connect, exchange, faults
from harness.http_mutations import request_bytes
from harness.server_faults import with_template
from harness.watched_server import Findings
from running_server import RunningServer

LONGEST_WAIT = 0.5  # seconds for /health
MOST_KIB = 1 << 20
TRIES = 4  # a request that seems to stop the server is sent again: the machine may have others to serve
_MOST_PARTS = 990_000
_MESSAGE = {"role": "user", "content": "a"}
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
_ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [_MESSAGE], "max_tokens": 1, "tools": [_TOOL], "stop": ["x"]},
    "/v1/completions": {"prompt": ["a"], "max_tokens": 1, "logit_bias": {"5": 1}, "guided_regex": "a"},
    "/v1/responses": {
        "input": [_MESSAGE],
        "max_output_tokens": 1,
        "instructions": "a",
        "metadata": {"a": "b"},
    },
    "/v1/tokenize": {"messages": [_MESSAGE], "chat_template_kwargs": {"a": 1}},
    "/v1/detokenize": {"tokens": [5]},
    "/v1/embeddings": {"input": ["a"]},
    "/v1/score": {"text_1": "a", "text_2": ["a"]},
    "/v1/batches": {
        "input_file_id": "a",
        "endpoint": "a",
        "completion_window": "24h",
        "metadata": {"a": "b"},
    },
}
_CHARACTERS = (" ", "a", "a b ", "\\n", '\\"', "\\\\", "\\u0041", "\\ud83d\\ude00", "\\ud800", "界", "😀")
_CHARACTERS += ("<|im_end|>", ",[{", "\u200b", "{{x}}", "(a|b)", "_________ ")
_ITEMS = (
    "1",
    "1.5",
    "null",
    '"a"',
    "[]",
    "{}",
    "[1,2]",
    '"' + "a" * 999 + '"',
    "9" * 90,
    "[" * 50 + "]" * 50,
)
_ITEMS += (json.dumps(_MESSAGE), json.dumps(_TOOL), '{"role":"usr"}', '{"type":"input_text","text":"a"}')


def large_request(random: Random, size: int) -> tuple[str, bytes, str]:
    """A route, a body, and in words how that is large."""
    route = random.choice([*_ROUTES])
    body = json.loads(json.dumps(_ROUTES[route]))
    if random.random() < 0.1:
        body["unknown"] = 0
    if route == "/v1/tokenize" and random.random() < 0.5:
        body = {"prompt": "a"}
    places = [*_places(body)]
    where, put = random.choice(places)
    how, part = random.choice((_text, _list, _object, _keys))(random, size)
    put("\0")
    data = json.dumps(body).encode().replace(json.dumps("\0").encode(), part)
    return route, data, f"{where} {how}"


def _places(value: Any, where: str = "") -> Any:
    """Yields each part of a value by name, with what puts another in its place."""
    if isinstance(value, dict | list):
        for key in [*value] if isinstance(value, dict) else range(len(value)):
            yield f"{where}.{key}", lambda other, key=key: value.__setitem__(key, other)
            yield from _places(value[key], f"{where}.{key}")


def _text(random: Random, size: int) -> tuple[str, bytes]:
    piece = random.choice(_CHARACTERS)
    return f"a text of {piece!r}", b'"' + piece.encode() * (size // len(piece.encode())) + b'"'


def _list(random: Random, size: int) -> tuple[str, bytes]:
    item = random.choice(_ITEMS)
    return f"a list of {item[:40]}", b"[" + b",".join([item.encode()] * _count(random, item, size)) + b"]"


def _object(random: Random, size: int) -> tuple[str, bytes]:
    item = random.choice(_ITEMS)
    pairs = (b'"k%07d":%s' % (n, item.encode()) for n in range(_count(random, item, size - 12)))
    return f"an object of {item[:40]}", b"{" + b",".join(pairs) + b"}"


def _keys(random: Random, size: int) -> tuple[str, bytes]:
    piece = random.choice(_CHARACTERS).encode()
    return f"a key of {piece!r}", b'{"' + piece * (size // len(piece)) + b'":1}'


def _count(random: Random, item: str, size: int) -> int:
    """So many items as fit, of all, or of what is counted before a body is read."""
    marks = 1 + sum(item.count(mark) for mark in "[{,")
    containers = item.count("[") + item.count("{")
    most = min(size // (len(item) + 12), _MOST_PARTS // marks)
    within = [49_000 // containers] if containers else []
    return max(1, min(most, random.choice([most, *within, 19_000, 1900])))


class OneServer:
    """A server to which large requests are sent, one at a time."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.findings = Findings(folder / "findings")
        model = f"model.checkpoint_name_or_path={with_template(folder / 'model')}"
        served = f"server.batches_dir={folder / 'served'}"
        self.server = RunningServer(model, served, "server.model_name=tiny", "decoding.max_new_tokens=4")

    def send(self, number: int, seed: int, size: int) -> None:
        """Sends the request of a number, again if the server seems to stop."""
        route, body, how = large_request(Random(f"{seed}:{number}"), size)
        wire = request_bytes("POST", route, body)
        waits: list[float] = []
        while len(waits) < TRIES and (not waits or waits[-1] > LONGEST_WAIT):
            before = self._restarted_peak()
            waits.append(self._longest_wait(wire, number, f"{route} {how}"))
            if (grown := self._memory("VmHWM") - before) > MOST_KIB:
                self.findings.add(f"{route} {how} takes memory", f"number {number}: {grown >> 10} MiB")
        if min(waits) > LONGEST_WAIT:
            self.findings.add(f"{route} {how} stops the server", f"number {number}: {waits}")

    def _longest_wait(self, wire: bytes, number: int, what: str) -> float:
        is_over, waits = threading.Event(), [0.0]
        watcher = threading.Thread(target=self._watch, args=(is_over, waits))
        with connect(self.server.port) as connection:
            watcher.start()
            answered = exchange(connection, wire, "POST", 1, 120)
        is_over.set()
        watcher.join()
        for answer in answered.answers:
            for fault in faults(answer, "POST", []):
                self.findings.add(fault, f"number {number}, {what}: {answer.body[:200]!r}")
        if not answered.answers:
            self.findings.add("no answer", f"number {number}, {what}: {answered}")
        return max(waits)

    def _watch(self, is_over: threading.Event, waits: list[float]) -> None:
        wire = request_bytes("GET", "/health")
        while not is_over.wait(0.02):
            begun = time.monotonic()
            with connect(self.server.port) as connection:
                exchange(connection, wire, "GET", 1, 120)
            waits.append(time.monotonic() - begun)

    def _restarted_peak(self) -> int:
        """Has the system measure the most memory anew; returns what there is."""
        Path(f"/proc/{self.server.process.pid}/clear_refs").write_text("5")
        return self._memory("VmRSS")

    def _memory(self, name: str) -> int:
        lines = Path(f"/proc/{self.server.process.pid}/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith(f"{name}:")))


def run() -> None:
    """Sends them all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--mib", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int)
    options = parser.parse_args()
    attack = OneServer(options.folder.absolute())
    numbers = range(options.requests) if options.only is None else [options.only]
    try:
        for number in numbers:
            attack.send(number, options.seed, options.mib << 20)
        assert attack.server.end() == 0
    finally:
        if attack.server.process.poll() is None:
            attack.server.kill()
    tracebacks = [line for line in attack.server.lines if "Traceback" in line]
    assert not tracebacks, tracebacks
    assert not attack.findings.counts, str(attack.findings)
    print(f"{len(numbers)} large requests")


if __name__ == "__main__":
    run()
