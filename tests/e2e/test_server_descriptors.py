"""Connections of strangers take no descriptor that the work of a server needs."""

import json
import shutil
import socket
import time
from pathlib import Path

import pytest

from running_server import RunningServer

pytestmark = [pytest.mark.slow]
KEY = "the-key-of-the-test"
AUTHORIZATION = {"authorization": f"Bearer {KEY}"}
LINE = {"custom_id": "a", "method": "POST", "url": "/v1/completions"}


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="needs prlimit, of util-linux")
def test_a_crowd_without_a_key_keeps_no_batch_from_its_work(tmp_path: Path) -> None:
    settings = ("model=tiny_gpt2", f"server.batches_dir={tmp_path / 'served'}", f"server.api_key={KEY}")
    server = RunningServer(*settings, before=("prlimit", "--nofile=160:160"))
    crowd = []
    for number in range(240):
        crowd.append(socket.create_connection(("127.0.0.1", server.port), timeout=30))
        crowd[-1].sendall(b"GET / HTTP/1.1\r\nx: " if number % 2 else b"")
    rows = [{**LINE, "custom_id": str(n), "body": {"prompt": "one,", "max_tokens": 4}} for n in range(20)]
    file = server.upload(b"".join(json.dumps(row).encode() + b"\n" for row in rows), **AUTHORIZATION)
    body = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
    status, answer = server.ask("POST", "/v1/batches", body, **AUTHORIZATION)
    assert status == 200, answer
    batch = json.loads(answer)
    while batch["status"] in ("validating", "in_progress"):
        time.sleep(0.05)
        batch = json.loads(server.ask("GET", f"/v1/batches/{batch['id']}", **AUTHORIZATION)[1])
    assert (batch["status"], batch["request_counts"]["completed"]) == ("completed", 20)
    descriptors = len([*Path(f"/proc/{server.process.pid}/fd").iterdir()])
    assert descriptors < 160 * 3 // 4
    for connection in crowd:
        connection.close()
    assert server.end() == 0
    assert server.lines == []
