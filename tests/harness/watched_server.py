"""A server under attack: what is found wrong with it, whether it still answers, and what it holds."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from harness.http_answers import Exchange, connect, exchange
from harness.http_mutations import request_bytes
from running_server import RunningServer

LONGEST_WAIT = 2.0  # seconds for /health
SECONDS_TO_REST = 10.0
_GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
_KNOWN_GOOD = {"prompt": "An increasing sequence: one, two,", "max_tokens": 20, "temperature": 0}


class Findings:
    """What is wrong, each once, with the bytes that show it in the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, threading.Lock()
        self.counts: Counter[str] = Counter()
        self._first: dict[str, str] = {}
        folder.mkdir()

    def add(self, what: str, detail: str = "", wire: bytes = b"") -> None:
        with self._lock:
            self.counts[what] += 1
            if what in self._first:
                return
            if wire:
                path = self._folder / f"{len(self._first)}.bin"
                path.write_bytes(wire)
                detail = f"{detail} ({path.name}: {wire[:160]!r}{wire[-160:]!r})"
            self._first[what] = detail

    def __str__(self) -> str:
        return "\n".join(
            f"{count} x {what}: {self._first[what]}" for what, count in self.counts.most_common()
        )


class WatchedServer:
    """One life of the server, asked for its health all the time."""

    def __init__(self, findings: Findings, *settings: str, key: str | None = None) -> None:
        self._findings = findings
        self.key = key
        self.server = RunningServer(*settings)
        self.port = self.server.port
        self.longest_wait = self.recent_wait = 0.0
        self._is_over = threading.Event()
        self._expected = self.known_good()
        self._watcher = threading.Thread(target=self._watch)
        self._watcher.start()

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """One request that is right; the status and the JSON or the bytes of the answer."""
        key = {} if self.key is None else {"authorization": f"Bearer {self.key}"}
        status, answer = self.server.ask(method, path, body, **key)
        return status, json.loads(answer) if answer[:1] == b"{" else answer

    def send(
        self, wire: bytes, method: str = "POST", count: int | None = 1, patience: float = 30
    ) -> Exchange:
        """Sends bytes over a connection of their own, which is closed then."""
        with connect(self.port) as connection:
            return exchange(connection, wire, method, count, patience)

    def known_good(self) -> str:
        """The text of a completion that is always the same."""
        status, answer = self.ask("POST", "/v1/completions", _KNOWN_GOOD)
        return str(answer["choices"][0]["text"]) if status == 200 else f"{status}: {answer}"

    def check(self) -> None:
        """The process runs and completes as it did."""
        assert self.server.process.poll() is None, f"the server has died: {self.server.lines}"
        if (found := self.known_good()) != self._expected:
            self._findings.add("a completion differs", f"{found!r} instead of {self._expected!r}")

    def gauges(self) -> dict[str, float]:
        """The engine's load."""
        status, page = self.ask("GET", "/metrics")
        assert status == 200, page
        values = (line.rsplit(" ", 1) for line in page.decode().splitlines() if line.startswith(_GAUGES))
        return {name.partition("{")[0]: float(value) for name, value in values}

    def check_rest(self, after: str) -> None:
        """The engine drops what nobody waits for."""
        begun = time.monotonic()
        while any((load := self.gauges()).values()):
            if time.monotonic() - begun > SECONDS_TO_REST:
                self._findings.add(f"the engine goes on after {after}", str(load))
                return
            time.sleep(0.1)

    def resources(self) -> dict[str, int]:
        """File descriptors, threads and resident KiB of the process."""
        folder = Path(f"/proc/{self.server.process.pid}")
        fields = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        memory = int(fields["VmRSS"].split()[0])
        return {"fds": len([*(folder / "fd").iterdir()]), "threads": int(fields["Threads"]), "KiB": memory}

    def kill(self) -> None:
        """Leaves no process behind."""
        self._is_over.set()
        if self.server.process.poll() is None:
            self.server.kill()

    def end(self, secrets: list[str]) -> None:
        """Ends it; judges how it ends and what its log says."""
        self._is_over.set()
        self._watcher.join()
        if (code := self.server.end()) != 0:
            self._findings.add("it ends with another code than 0", str(code))
        for line in self.server.lines:
            text = line.removesuffix("\n")
            if not text.isprintable():
                self._findings.add("control characters in the log", repr(text[:300]))
            if "Traceback" in text:
                at = self.server.lines.index(line)
                self._findings.add(
                    "a traceback in the log", "".join(self.server.lines[at - 1 : at + 40])[:5000]
                )
            if any(secret in text for secret in secrets):
                self._findings.add("a key in the log", text[:300])

    def _watch(self) -> None:
        wire = request_bytes("GET", "/health")
        while not self._is_over.wait(0.05):
            begun = time.monotonic()
            try:
                answers = self.send(wire, "GET").answers
            except OSError:
                answers = []
            waited = time.monotonic() - begun
            self.longest_wait = max(self.longest_wait, waited)
            self.recent_wait = max(self.recent_wait, waited)
            if self._is_over.is_set():
                return
            if not answers or answers[0].status != 200:
                self._findings.add("no health", str(answers))
            elif waited > LONGEST_WAIT:
                self._findings.add("the server stood still", f"{waited:.1f} s")
