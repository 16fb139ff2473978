"""Sends `mindbatch serve` what no client should: it must refuse it, stay, and be at rest when all have gone.

python server_faults.py FOLDER [--requests 2000] [--connections 500] [--rounds 3] [--seed 0]
    [--rows ROWS] [--only NUMBER]
prints what was done; fails with what was found, each with the bytes that show it in FOLDER/findings.

Requests are mutated (http_mutations.py), heavy (heavy_requests.py) or to be refused (refusals.py); clients
drip, leave or never read (slow_clients.py) and come in crowds (crowds.py). Amid that batches run, which must
give what the same batch gives when nothing else runs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import threading
import time
from pathlib import Path
from random import Random
from typing import Any

from small_tokenizers import CHATML

from harness.crowds import crowd, full_house
from harness.heavy_requests import HEAVY, send_heavy
from harness.http_answers import Exchange, faults
from harness.http_mutations import Sent, batch_line, mutated
from harness.kept_files import check_folders
from harness.refusals import check_bounds, check_doors, check_key
from harness.slow_clients import drip, leave, never_read
from harness.watched_server import Findings, WatchedServer

TINY = Path(__file__).parents[2] / "examples/tiny_gpt2"
KEY = "the-key-of-the-harness"
READ_SECONDS, REQUEST_SECONDS, MAX_REQUESTS = 2, 20, 20
MAX_BODY, MAX_FILE = 256 << 10, 1 << 20
NUM_SENDERS = 4
REQUESTS_BETWEEN_CHECKS = 200
PATIENCE = 0.2  # seconds for answers to bytes that need not get any
MOST_KIB_UNREAD, MOST_KIB_A_ROUND = 100 << 10, 4 << 10
SETTINGS = (
    *("server.model_name=tiny", "decoding.max_new_tokens=8", "model.batch_size=8", "decoding.seed=5"),
    *(f"server.read_seconds={READ_SECONDS}", f"server.request_seconds={REQUEST_SECONDS}", "server.max_n=4"),
    *(f"server.max_requests={MAX_REQUESTS}", f"server.max_body={MAX_BODY}", f"server.max_file={MAX_FILE}"),
    "server.max_files=3000",
)
_RUNS = ("validating", "in_progress", "cancelling")
_CREATED = re.compile(rb'"created":[0-9]+')


class ServerFaults:
    """A folder with a model, a server over it, and what has been found."""

    def __init__(self, folder: Path, seed: int, rows: int) -> None:
        self._folder, self._seed = folder.absolute(), seed
        folder.mkdir(exist_ok=True)
        self.findings = Findings(folder / "findings")
        self._temporary = self._folder / "temporary"
        self._temporary.mkdir()
        os.environ["TMPDIR"] = str(self._temporary)
        self._served = self._folder / "served"
        self._model = with_template(self._folder / "model")
        self.watched = self._start()
        self._rows = self.watched.server.upload(b"".join(map(batch_line, range(rows))))
        self._small = self.watched.server.upload(batch_line(0))
        self._expected = self._results(self._begin())
        self.did: list[str] = []

    def _start(self, *settings: str, key: str | None = None) -> WatchedServer:
        model = f"model.checkpoint_name_or_path={self._model}"
        folder = f"server.batches_dir={self._served if key is None else self._folder / 'with_key'}"
        return WatchedServer(self.findings, model, folder, *SETTINGS, *settings, key=key)

    def run(self, requests: int, connections: int, rounds: int) -> None:
        """Everything, in turn; a batch runs amid the requests, another amid the crowds."""
        watched, random = self.watched, Random(self._seed)
        batch = self._begin()
        drips = drip(watched, self.findings, READ_SECONDS)
        self.send(range(requests), [batch])
        for thread in drips:
            thread.join()
        self._compare(batch)
        self._wait_for_batches()
        watched.check_rest("mutated requests")
        check_doors(watched, self.findings)
        check_bounds(watched, self.findings, MAX_BODY, MAX_FILE)
        heavy = [*HEAVY] if requests >= len(HEAVY) * REQUESTS_BETWEEN_CHECKS else random.sample([*HEAVY], 3)
        send_heavy(watched, self.findings, heavy)
        left = leave(watched, self.findings, random, max(1, requests // 1000))
        never_read(watched, self.findings, min(30, connections // 10), MOST_KIB_UNREAD)
        streams = self._crowds(connections, rounds)
        full_house(watched, self.findings, MAX_REQUESTS - 2)  # one may ask for health
        watched.check()
        self.did += [
            f"{len(drips)} drips",
            f"{left} kinds of clients that left",
            f"{streams} streams in crowds",
        ]
        self.did.append(f"longest wait for /health {watched.longest_wait:.2f} s")
        watched.end([])
        check_folders(self._served, self._temporary, [self._folder, self._folder.parent], self.findings)

    def run_with_key(self, requests: int) -> None:
        """Requests of which few have the key; none may read it, nor the log."""
        watched = self.watched = self._start(f"server.api_key={KEY}", key=KEY)
        for number in range(requests):
            sent = mutated(Random(f"{self._seed}:key:{number}"), ["file-x"], ["batch_x"])
            self._judge(sent, self._exchange(watched, sent, number), [KEY])
            key = f"authorization: Bearer {KEY}\r\n".encode()
            with_key = b"\r\n" + (key if number % 2 else key.replace(b"Bearer", b"Basic"))
            self._exchange(watched, sent, number, sent.wire.replace(b"\r\n", with_key, 1))
        check_key(watched, self.findings, KEY)
        watched.end([KEY])
        self.did.append(f"{requests} requests of a server with a key")

    def send(self, numbers: range | list[int], batches: list[str]) -> None:
        """Sends the mutated requests of these numbers, several at a time; now and then a good one."""
        waiting, lock = iter(numbers), threading.Lock()
        files = [self._small, "file-" + "0" * 24]

        def sender() -> None:
            while True:
                with lock:
                    number = next(waiting, None)
                if number is None:
                    return
                sent = mutated(Random(f"{self._seed}:{number}"), files, batches)
                self._judge(sent, self._exchange(self.watched, sent, number), [str(self._folder)], number)
                if number % REQUESTS_BETWEEN_CHECKS == 0:
                    self.watched.check()

        senders = [threading.Thread(target=sender) for _ in range(NUM_SENDERS)]
        for thread in senders:
            thread.start()
        for thread in senders:
            thread.join()
        self.watched.check()
        self.did.append(f"{len(numbers)} mutated requests")

    def _exchange(
        self, watched: WatchedServer, sent: Sent, number: int, wire: bytes | None = None
    ) -> Exchange:
        is_patient = sent.count is None and number % 50 == 0  # waits until the server ends it
        patience = PATIENCE if sent.count is None else REQUEST_SECONDS + 10.0
        if is_patient:
            patience = READ_SECONDS + 2.0
        count = None if sent.count is None else abs(sent.count)
        answered = watched.send(sent.wire if wire is None else wire, sent.method, count, patience)
        if is_patient and answered.ended == "open" and answered.error is None:
            self.findings.add("broken bytes keep a connection", f"number {number}", sent.wire)
        return answered

    def _judge(self, sent: Sent, answered: Exchange, secrets: list[str], number: int = -1) -> None:
        def found(what: str, detail: str = "") -> None:
            self.findings.add(what, f"number {number}: {detail}"[:500], sent.wire)

        if answered.error is not None and (sent.count is not None or sent.method != "HEAD"):
            found("an answer is no HTTP", answered.error)
        for answer in answered.answers:
            for fault in faults(answer, sent.method, secrets):
                found(fault, f"{sent.method} {sent.target[:80]}: {answer.body[:200]!r}")
            if answer.status == 503 and b"timeout" not in answer.body:
                found("503", str(answer.body[:300]))
        if sent.count is None:
            return
        if not answered.answers:
            found(f"no answer, and it was {answered.ended}", f"after {answered.seconds:.1f} s")
        elif not all(answer.is_whole for answer in answered.answers):
            found(f"an answer breaks off ({answered.ended})", str(answered.answers[-1])[:200])
        elif sent.count < 0 and len(answered.answers) < -sent.count and answered.ended == "open":
            found("a pipelined request has no answer")

    def _crowds(self, connections: int, rounds: int) -> int:
        """Crowds after one that warms up; the process then holds as much as before."""
        watched = self.watched
        random, streams, limit = Random(self._seed), 0, 2 * READ_SECONDS + 10.0 + connections / 50
        held = [watched.resources()]
        batch = self._begin()
        for _ in range(rounds + 1):
            streams += crowd(watched, self.findings, random, connections, MAX_REQUESTS, limit)
            self._wait_for_batches()
            watched.check_rest("a crowd")
            held.append(watched.resources())
        self._compare(batch)
        shown = ", ".join(f"{one['fds']} fds {one['threads']} threads {one['KiB']} KiB" for one in held)
        for name, since, most in (("fds", 0, 8), ("threads", 0, 8), ("KiB", 1, MOST_KIB_A_ROUND * rounds)):
            if held[-1][name] - held[since][name] > most:
                self.findings.add(f"crowds leave {name}", shown)
        self.did.append(f"{rounds + 1} crowds of {connections} ({shown})")
        return streams

    def _begin(self) -> str:
        body = {"input_file_id": self._rows, "endpoint": "/v1/completions", "completion_window": "24h"}
        status, batch = self.watched.ask("POST", "/v1/batches", body)
        assert status == 200, batch
        return str(batch["id"])

    def _results(self, name: str) -> bytes:
        """The results of a batch, once it has ended."""
        while (batch := self._batch(name))["status"] in _RUNS:
            time.sleep(0.1)
        assert batch["status"] == "completed", batch
        results = self.watched.server.ask("GET", f"/v1/files/{batch['output_file_id']}/content")[1]
        return _CREATED.sub(b'"created":0', results)

    def _batch(self, name: str) -> dict[str, Any]:
        status, batch = self.watched.ask("GET", f"/v1/batches/{name}")
        assert status == 200, batch
        return dict(batch)

    def _compare(self, name: str) -> None:
        if self._results(name) != self._expected:
            self.findings.add("a batch amid others differs", name)

    def _wait_for_batches(self) -> None:
        """Those that mutated requests began; then /metrics tells of none that runs."""
        while any(batch["status"] in _RUNS for batch in self._batches()):
            time.sleep(0.1)
        for line in self.watched.ask("GET", "/metrics")[1].decode().splitlines():
            told = line.startswith("mindbatch:batches{") and any(f'"{one}"' in line for one in _RUNS)
            if told and not line.endswith(" 0.0"):
                self.findings.add("metrics tell of batches that have ended", line)

    def _batches(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        page: dict[str, Any] = {"has_more": True}
        while page["has_more"]:
            after = f"&after={found[-1]['id']}" if found else ""
            status, page = self.watched.ask("GET", f"/v1/batches?limit=100{after}")
            assert status == 200, page
            found += page["data"]
        return found


def with_template(folder: Path) -> Path:
    """The shipped model, which has no chat template, with one."""
    shutil.copytree(TINY, folder, ignore=shutil.ignore_patterns("digests.json"))
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": CHATML}))
    return folder


def run() -> None:
    """Runs everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--connections", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3, help="crowds after the first")
    parser.add_argument("--rows", type=int, help="of a batch; else a twentieth of the requests, 50 at least")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="send only the mutated request of this number")
    options = parser.parse_args()
    attack = ServerFaults(options.folder, options.seed, options.rows or max(50, options.requests // 20))
    try:
        if options.only is not None:
            attack.send([options.only], [attack._begin()])
            attack.watched.end([])
        else:
            attack.run(options.requests, options.connections, options.rounds)
            attack.run_with_key(min(300, max(10, options.requests // 20)))
    finally:
        attack.watched.kill()
        print(", ".join(attack.did))
        if attack.findings.counts:
            print(f"found:\n{attack.findings}")
    assert not attack.findings.counts


if __name__ == "__main__":
    run()
