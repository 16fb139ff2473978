"""How answers and servers end: at the model's limit, when they are told to, when the time is over."""

import json
import time
from pathlib import Path

from running_server import RunningServer


def test_a_server_that_is_told_to_end_finishes_what_runs(tmp_path: Path) -> None:
    server = RunningServer("model=tiny_gpt2", f"server.batches_dir={tmp_path / 'served'}")
    chunks = server.stream("/v1/completions", {"prompt": "one,", "max_tokens": 2000})
    next(chunks)
    server.process.terminate()
    while json.loads(server.ask("GET", "/ready")[1])["status"] != "draining":
        time.sleep(0.01)
    status, answer = server.ask("POST", "/v1/completions", {"prompt": "two,"})
    assert (status, json.loads(answer)["error"]["code"]) == (503, "draining")
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-1] in ("length", "stop")
    assert server.process.wait(30) == 0


def test_what_runs_when_the_time_is_over_is_told_so(tmp_path: Path) -> None:
    server = RunningServer("model=tiny_gpt2", "server.drain_seconds=0", "server.max_n=32")
    chunks = server.stream(
        "/v1/completions", {"prompt": "one,", "ignore_eos": True, "n": 32, "temperature": 1}
    )
    next(chunks)
    server.process.terminate()
    *_, last = chunks
    assert last["error"]["message"] == "the server ends"
    assert server.end() == 0
    assert server.lines == []


def test_answers_are_as_long_as_the_model_gives_them() -> None:
    server = RunningServer("model=tiny_gpt2")
    status, answer = server.ask("POST", "/v1/completions", {"prompt": "a", "ignore_eos": True})
    assert status == 200
    assert json.loads(answer)["usage"]["total_tokens"] == 2048
    status, answer = server.ask("POST", "/v1/completions", {"prompt": [5] * 2048})
    assert (status, json.loads(answer)["error"]["code"]) == (400, "context_length_exceeded")
    assert server.end() == 0
