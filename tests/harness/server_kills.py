"""Kills `mindbatch serve` at random moments while batches and streams run, and starts it again.

python server_kills.py FOLDER [--rows 120] [--kills 10] [--seed 0]
prints what was done; an assertion fails where the results of a batch are not, to the byte, those that
`mindbatch batch` writes of the same file (but for the second in which the run was begun), where a row is
there twice, or where a stream brought what an unbroken one does not.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import re
import threading
import time
from pathlib import Path
from typing import Any

from mindbatch.cli import main
from running_server import RunningServer

MODEL = "model=tiny_gpt2"
ENDPOINT = "/v1/completions"
STREAMS = 10
LONGEST_LIFE = 3.0  # seconds after the server answers
SETTINGS = ("decoding.max_new_tokens=48", "decoding.seed=5", "model.batch_size=4")
OWN: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"n": 2, "top_p": 0.9},
    {"use_beam_search": True, "n": 2},
)
_CREATED = re.compile(rb'"created":[0-9]+')


def request_line(number: int) -> dict[str, Any]:
    """A request of a batch, decoded in one of several ways."""
    body = {"prompt": f"Count from {number % 9}: one, two,", **OWN[number % len(OWN)]}
    return {"custom_id": f"row-{number}", "method": "POST", "url": ENDPOINT, "body": body}


class ServerKills:
    """A folder of batches, what they should give, and lives of the server that are cut short."""

    def __init__(self, folder: Path, rows: int, seed: int) -> None:
        self.num_kills = self.num_batches = self.num_streams = 0
        self._random = random.Random(seed)
        self._folder = folder / "batches"
        self._data = b"".join(json.dumps(request_line(number)).encode() + b"\n" for number in range(rows))
        path = folder / "rows.jsonl"
        path.write_bytes(self._data)
        unbroken = folder / "unbroken"
        arguments = ["batch", MODEL, *SETTINGS, "data=openai", f"data.path={path}", f"output.dir={unbroken}"]
        assert main([*arguments, "progress=none"]) == 0
        self._expected = _CREATED.sub(b'"created":0', (unbroken / "results.jsonl").read_bytes())
        self._server: RunningServer | None = None
        self._running: list[str] = []
        self._texts: dict[str, str] = {}

    def kill(self, kills: int) -> None:
        """Kills until there were so many; what is left is brought to its end."""
        while self.num_kills < kills:
            server = self._server = RunningServer(MODEL, *SETTINGS, f"server.batches_dir={self._folder}")
            self._look_at(server)
            while len(self._running) < 2:
                self._running.append(self._begin(server))
            streams = [self._streaming(server, number) for number in range(STREAMS)]
            time.sleep(self._random.uniform(0, LONGEST_LIFE))
            server.kill()
            self.num_kills += 1
            for stream in streams:
                stream.join()
        server = self._server = RunningServer(MODEL, *SETTINGS, f"server.batches_dir={self._folder}")
        while self._running:
            self._look_at(server)
            time.sleep(0.1)
        assert server.end() == 0

    def end(self) -> None:
        """Leaves no process behind."""
        if self._server is not None and self._server.process.poll() is None:
            self._server.kill()

    def _begin(self, server: RunningServer) -> str:
        file = server.upload(self._data)
        body = {"input_file_id": file, "endpoint": ENDPOINT, "completion_window": "24h"}
        status, answer = server.ask("POST", "/v1/batches", body)
        assert status == 200, answer
        return str(json.loads(answer)["id"])

    def _look_at(self, server: RunningServer) -> None:
        """Compares the batches that have ended."""
        for name in [*self._running]:
            status, answer = server.ask("GET", f"/v1/batches/{name}")
            assert status == 200, answer
            batch = json.loads(answer)
            assert batch["status"] in ("validating", "in_progress", "completed"), batch
            if batch["status"] == "completed":
                status, results = server.ask("GET", f"/v1/files/{batch['output_file_id']}/content")
                found = _CREATED.sub(b'"created":0', results)
                keys = [json.loads(line)["custom_id"] for line in found.splitlines()]
                assert len(keys) == len({*keys}), f"{name}: rows are there twice"
                assert found == self._expected, f"{name} differs"
                self._running.remove(name)
                self.num_batches += 1

    def _streaming(self, server: RunningServer, number: int) -> threading.Thread:
        thread = threading.Thread(target=self._stream, args=(server, f"An increasing sequence: {number},"))
        thread.start()
        return thread

    def _stream(self, server: RunningServer, prompt: str) -> None:
        """Streams over and over until the server is gone; each begins as the longest one of its prompt."""
        while True:
            text = ""
            try:
                body = {"prompt": prompt, "max_tokens": 64, "temperature": 0}
                for chunk in server.stream(ENDPOINT, body):
                    text += chunk["choices"][0]["text"]
            except (OSError, http.client.HTTPException):
                return
            finally:
                longest = max(text, self._texts.get(prompt, ""), key=len)
                assert longest.startswith(text), (longest, text)
                self._texts[prompt] = longest
                self.num_streams += 1


def run() -> None:
    """Runs everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=120)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    kills = ServerKills(options.folder, options.rows, options.seed)
    try:
        kills.kill(options.kills)
    finally:
        kills.end()
    print(
        f"{kills.num_kills} kills, {kills.num_batches} batches as unbroken ones, {kills.num_streams} streams"
    )


if __name__ == "__main__":
    run()
