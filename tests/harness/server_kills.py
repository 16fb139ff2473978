"""Kills `mindbatch serve` at random moments while batches and streams run, and starts it again.

python server_kills.py FOLDER [--rows 120] [--kills 10] [--seed 0]
prints what was done; an assertion fails where the results of a batch are not, to the byte, those that
`mindbatch batch` writes of the same file (but for the second in which the run was begun), where a row is there
twice, or where a stream brought what an unbroken one does not.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mindbatch.cli import main

MODEL = "model=tiny_gpt2"
ENDPOINT = "/v1/completions"
STREAMS = 10
LONGEST_LIFE = 3.0  # seconds after the server answers
SETTINGS = ("decoding.max_new_tokens=48", "decoding.seed=5", "model.batch_size=4")
OWN: tuple[dict[str, Any], ...] = ({"temperature": 0}, {"n": 2, "top_p": 0.9}, {"use_beam_search": True, "n": 2})
_CREATED = re.compile(rb'"created":[0-9]+')


def request_line(number: int) -> dict[str, Any]:
    """A request of a batch, decoded in one of several ways."""
    body = {"prompt": f"Count from {number % 9}: one, two,", **OWN[number % len(OWN)]}
    return {"custom_id": f"row-{number}", "method": "POST", "url": ENDPOINT, "body": body}


class Server:
    """One life of the server's process."""

    def __init__(self, folder: Path) -> None:
        command = [
            *(sys.executable, "-m", "mindbatch", "serve", MODEL, *SETTINGS),
            *("server.port=0", f"server.batches_dir={folder}"),
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if found := re.search(r"http://127\.0\.0\.1:(\d+)/v1", line):
                self.port = int(found[1])
                break
        else:
            raise AssertionError(f"the server ended with {self.process.wait()}")
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        """One request, as JSON; the status and the bytes of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = None if body is None else json.dumps(body).encode()
        connection.request(method, path, data, {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()

    def upload(self, content: bytes) -> str:
        """Brings a file; returns its identifier."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        head = b'--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x\r\n'
        head += b'content-disposition: form-data; name="file"; filename="rows.jsonl"\r\n\r\n'
        body = head + content + b"\r\n--x--\r\n"
        connection.request("POST", "/v1/files", body, {"content-type": "multipart/form-data; boundary=x"})
        answer = json.loads(connection.getresponse().read())
        return str(answer["id"])

    def stream(self, prompt: str) -> Iterator[str]:
        """The texts of a stream, until it ends or breaks off."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        body = {"prompt": prompt, "max_tokens": 64, "temperature": 0, "stream": True}
        connection.request("POST", ENDPOINT, json.dumps(body), {"content-type": "application/json"})
        for line in connection.getresponse():
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])["choices"][0]["text"]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


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
        self._expected = _CREATED.sub(b"", (unbroken / "results.jsonl").read_bytes())
        self._server: Server | None = None
        self._running: list[str] = []
        self._texts: dict[str, str] = {}

    def kill(self, kills: int) -> None:
        """Kills until there were so many; what is left is brought to its end."""
        while self.num_kills < kills:
            server = self._server = Server(self._folder)
            self._look_at(server)
            while len(self._running) < 2:
                self._running.append(self._begin(server))
            streams = [self._streaming(server, number) for number in range(STREAMS)]
            time.sleep(self._random.uniform(0, LONGEST_LIFE))
            server.kill()
            self.num_kills += 1
            for stream in streams:
                stream.join()
        server = self._server = Server(self._folder)
        while self._running:
            self._look_at(server)
            time.sleep(0.1)
        server.process.terminate()
        assert server.process.wait(30) == 0

    def end(self) -> None:
        """Leaves no process behind."""
        if self._server is not None and self._server.process.poll() is None:
            self._server.kill()

    def _begin(self, server: Server) -> str:
        file = server.upload(self._data)
        body = {"input_file_id": file, "endpoint": ENDPOINT, "completion_window": "24h"}
        status, answer = server.ask("POST", "/v1/batches", body)
        assert status == 200, answer
        return str(json.loads(answer)["id"])

    def _look_at(self, server: Server) -> None:
        """Compares the batches that have ended."""
        for name in [*self._running]:
            status, answer = server.ask("GET", f"/v1/batches/{name}")
            assert status == 200, answer
            batch = json.loads(answer)
            assert batch["status"] in ("validating", "in_progress", "completed"), batch
            if batch["status"] == "completed":
                status, results = server.ask("GET", f"/v1/files/{batch['output_file_id']}/content")
                found = _CREATED.sub(b"", results)
                keys = [json.loads(line)["custom_id"] for line in found.splitlines()]
                assert len(keys) == len({*keys}), f"{name}: rows are there twice"
                assert found == self._expected, f"{name} differs"
                self._running.remove(name)
                self.num_batches += 1

    def _streaming(self, server: Server, number: int) -> threading.Thread:
        thread = threading.Thread(target=self._stream, args=(server, f"An increasing sequence: {number},"))
        thread.start()
        return thread

    def _stream(self, server: Server, prompt: str) -> None:
        """Streams over and over until the server is gone; each begins as the longest one of its prompt."""
        while True:
            text = ""
            try:
                for part in server.stream(prompt):
                    text += part
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
    print(f"{kills.num_kills} kills, {kills.num_batches} batches as unbroken ones, {kills.num_streams} streams")


if __name__ == "__main__":
    run()
