"""`mindbatch serve` in a process of its own, asked over HTTP without any client's library."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

JSON = {"content-type": "application/json"}


class RunningServer:
    """One life of the server's process. before: words of its command, like those of `prlimit`."""

    def __init__(self, *settings: str, before: Sequence[str] = ()) -> None:
        command = [*before, sys.executable, "-m", "mindbatch", "serve", *settings, "server.port=0"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, umask=0o022
        )
        assert self.process.stderr is not None
        self.lines: list[str] = []
        for line in self.process.stderr:
            if found := re.search(r"http://127\.0\.0\.1:(\d+)/v1", line):
                self.port = int(found[1])
                break
            self.lines.append(line)
        else:
            raise AssertionError(f"the server ended with {self.process.wait()}: {self.lines}")
        self._reader = threading.Thread(target=self.lines.extend, args=(self.process.stderr,), daemon=True)
        self._reader.start()

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
        """One request, as JSON; the status and the bytes of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = None if body is None else json.dumps(body).encode()
        connection.request(method, path, data, {**JSON, **headers})
        answer = connection.getresponse()
        return answer.status, answer.read()

    def upload(self, content: bytes, **headers: str) -> str:
        """Brings a file; returns its identifier."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        head = b'--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x\r\n'
        head += b'content-disposition: form-data; name="file"; filename="rows.jsonl"\r\n\r\n'
        body = head + content + b"\r\n--x--\r\n"
        form = {"content-type": "multipart/form-data; boundary=x"}
        connection.request("POST", "/v1/files", body, {**form, **headers})
        answer = json.loads(connection.getresponse().read())
        return str(answer["id"])

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[Any]:
        """The chunks of a stream, until it ends or breaks off."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", path, json.dumps({**body, "stream": True}), JSON)
        for line in connection.getresponse():
            if line.startswith(b"data: {") and line.endswith(b"\n"):  # a kill may cut one off
                yield json.loads(line[6:])

    def end(self) -> int:
        """Tells it to end; returns its exit code once it has said all."""
        self.process.terminate()
        code = self.process.wait(60)
        self._reader.join()
        return code

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
