"""Times `mindbatch serve` at 1 to 64 users beside `mindbatch batch` on the same rows.

    python tools/bench serve [--users 1 8 32 64] [--rows 192] [--dtype float32] [--rounds 3]
        [--model FOLDER] [--beside PORT]

GPT-2 124M shapes with random weights, or a folder of such; rows as of tools/bench batch, as completions of
token ids. Each of so many users sends its next row when it has its answer; the batch has as many slots.
Answers come whole, then as streams, of which the time to the first token is taken. Server and clients share
the machine's processors. Another server (llamacpp_server) that stands at a port of this machine, with as
many slots, gets the same streams. The sides take turns; shown are medians of the rounds, and their ratios.
"""

from __future__ import annotations

import argparse
import http.client
import json
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.command_line import parser_of
from bench.random_model import GPT2_124M, write_random
from bench.rows import make_rows
from mindbatch.tasks.doctor import processor

ENDPOINT = "/v1/completions"
JSON = {"content-type": "application/json"}
FIRST_USERS = 8
"""Users for whom the first token's time is shown."""


class Server:
    """The server's process."""

    def __init__(self, *settings: str) -> None:
        command = [sys.executable, "-m", "mindbatch", "serve", *settings, "server.port=0"]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        line = self._process.stderr.readline()
        self.port = int(line.split("127.0.0.1:")[1].split("/")[0])

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


def run_users(
    port: int, bodies: Sequence[dict[str, Any]], users: int, answer: Callable[..., float]
) -> list[float]:
    """Sends all bodies, so many at a time; the seconds in all, then those to the first token of each."""
    waiting: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    for body in bodies:
        waiting.put(body)
    first: list[float] = []

    def user() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        while True:
            try:
                body = waiting.get_nowait()
            except queue.Empty:
                return
            first.append(answer(connection, body))
            connection.close()  # some servers end a connection after a stream, and do not say so

    threads = [threading.Thread(target=user) for _ in range(users)]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [time.perf_counter() - begun, *first]


def whole(connection: http.client.HTTPConnection, body: dict[str, Any]) -> float:
    """One answer as a whole; the seconds it took."""
    begun = time.perf_counter()
    connection.request("POST", ENDPOINT, json.dumps(body), JSON)
    answer = json.loads(connection.getresponse().read())
    assert answer["usage"]["completion_tokens"] == body["max_tokens"], answer
    return time.perf_counter() - begun


def streamed(connection: http.client.HTTPConnection, body: dict[str, Any]) -> float:
    """One answer as a stream; the seconds to its first token."""
    begun, first = time.perf_counter(), 0.0
    connection.request("POST", ENDPOINT, json.dumps({**body, "stream": True}), JSON)
    response = connection.getresponse()
    while line := response.readline():
        if not first and line.startswith(b"data: {"):
            first = time.perf_counter() - begun
    return first


def run_batch(
    folder: Path, model: Sequence[str], bodies: Sequence[dict[str, Any]], users: int, name: str
) -> float:
    """The same rows as a batch; the seconds of the run, without loading the model."""
    data, run = folder / "rows.jsonl", folder / name
    with data.open("w") as file:
        for number, body in enumerate(bodies):
            line = {"custom_id": f"{number}", "method": "POST", "url": ENDPOINT, "body": body}
            file.write(json.dumps(line) + "\n")
    words = [f"data.path={data}", "data=openai", f"output.dir={run}", f"model.batch_size={users}"]
    command = [sys.executable, "-m", "mindbatch", "batch", *model, *words, "progress=none"]
    subprocess.run(command, check=True)
    return float(json.loads((run / "manifest.json").read_text())["seconds"])


def main() -> None:
    parser = parser_of(__doc__, rounds=3)
    parser.add_argument("--users", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--rows", type=int, default=192)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--beside", type=int)
    options = parser.parse_args()
    print(f"{processor()}, {options.dtype}, {options.rows} rows, medians of {options.rounds} rounds")
    print("users   batch tok/s   server   streams   server/batch   first token ms (median, 95%)")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.model is None:
            options.model = folder / "model"
            options.model.mkdir()
            write_random(options.model, GPT2_124M)
        model = [f"model.checkpoint_name_or_path={options.model}", f"model.dtype={options.dtype}"]
        model += ["decoding.eos_token_id=[]", "runtime.prefix_caching=false"]
        for users in options.users:
            measure(folder, model, users, options)


def measure(folder: Path, model: Sequence[str], users: int, options: argparse.Namespace) -> None:
    """Prints the line for a number of users."""
    count = options.rows if users > 1 else max(8, options.rows // 8)
    rows = make_rows(count, GPT2_124M["vocab_size"])
    bodies = [{"prompt": row.prompt, "max_tokens": row.answer_tokens, "temperature": 0} for row in rows]
    tokens = sum(row.answer_tokens for row in rows)
    seconds: dict[str, list[float]] = {"batch": [], "whole": [], "stream": [], "beside": []}
    first: dict[str, list[float]] = {"stream": [], "beside": []}
    server = Server(*model, f"model.batch_size={users}")

    def run_streams(side: str, port: int, bodies: Sequence[dict[str, Any]]) -> None:
        in_all, *first_seconds = run_users(port, bodies, users, streamed)
        seconds[side].append(in_all)
        first[side] += first_seconds

    try:
        run_users(server.port, bodies[:users], users, whole)
        for number in range(options.rounds):
            seconds["batch"].append(run_batch(folder, model, bodies, users, f"{users}-{number}"))
            seconds["whole"].append(run_users(server.port, bodies, users, whole)[0])
            run_streams("stream", server.port, bodies)
            if options.beside:
                run_streams("beside", options.beside, [{**body, "ignore_eos": True} for body in bodies])
    finally:
        server.close()
    rates = {side: tokens / statistics.median(times) for side, times in seconds.items() if times}
    print(
        f"{users:5}   {rates['batch']:11.0f}   {rates['whole']:6.0f}   {rates['stream']:7.0f}   "
        f"{rates['whole'] / rates['batch']:12.3f}   {middle_and_late(first['stream'])}",
        flush=True,
    )
    if options.beside:
        late = middle_and_late(first["beside"])
        print(f"  beside: streams {rates['beside']:.0f} tok/s, first token ms {late}", flush=True)


def middle_and_late(seconds: list[float]) -> str:
    """The median and the 95% quantile, in milliseconds."""
    ordered = sorted(seconds)
    return ", ".join(f"{1000 * ordered[int(share * (len(ordered) - 1))]:.0f}" for share in (0.5, 0.95))
