"""Requests that are small on the wire and heavy for a server: while one is answered the others must go on."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

from harness.http_answers import faults
from harness.http_mutations import request_bytes
from harness.watched_server import Findings, WatchedServer

LONGEST_STOP = 1.0  # seconds for /health
LONGEST_WAIT_OF_OTHERS = 5.0  # seconds for a completion of two tokens
_COMPLETIONS, _CHAT = "/v1/completions", "/v1/chat/completions"


def _keys(count: int) -> dict[str, int]:
    return {f"k{number}": 1 for number in range(count)}


def _schema(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"k{number}": {"type": "string"} for number in range(count)}}


_ONE: dict[str, Any] = {"prompt": "a", "max_tokens": 1}
_MANY: dict[str, Any] = {"prompt": ["a"] * 1000, "max_tokens": 1}
HEAVY: dict[str, tuple[str, dict[str, Any]]] = {
    "unknown keys": (_COMPLETIONS, {**_ONE, **_keys(20_000)}),
    "unknown keys of a chat": (_CHAT, {"messages": [{"role": "user", "content": "a", **_keys(20_000)}]}),
    "unknown keys of a response": ("/v1/responses", {"input": "a", "text": _keys(20_000), **_keys(500)}),
    "unknown keys of a batch": ("/v1/batches", {"metadata": {}, **_keys(20_000)}),
    "unknown roles": (_CHAT, {"messages": [{"role": "usr"}] * 15_000}),
    "unknown items": ("/v1/responses", {"input": [{"type": "mesage"}] * 10_000}),
    "a schema for many prompts": (_COMPLETIONS, {**_MANY, "guided_json": _schema(300)}),
    "a regex for many prompts": (_COMPLETIONS, {**_MANY, "guided_regex": "(a|b)" * 300}),
    "a long regex": (_COMPLETIONS, {**_ONE, "guided_regex": "(a|b)" * 8000}),
    "nested repetitions": (_COMPLETIONS, {**_ONE, "guided_regex": "((((a{1,90}){1,90}){1,90}){1,90})"}),
    "a long prompt": (_COMPLETIONS, {**_ONE, "prompt": "a b" * 80_000}),
    "long prompts that do not fit": (_COMPLETIONS, {**_ONE, "prompt": ["a " * 100_000] + ["a"] * 900}),
    "many prompts with metadata": (_COMPLETIONS, {**_MANY, "metadata": _keys(10_000)}),
    "many prompts with faults": (_COMPLETIONS, {**_MANY, "temprature": 1, "n": -1, "top_p": 9}),
    "many choices": (_COMPLETIONS, {**_MANY, "n": 4, "logprobs": 5, "max_tokens": 4}),
    "many scored prompts": (
        _COMPLETIONS,
        {**_MANY, "prompt": ["a b " * 50] * 400, "echo": True, "logprobs": 5},
    ),
    "a bias for many prompts": (_COMPLETIONS, {**_MANY, "logit_bias": {str(n): 1 for n in range(400)}}),
    "stops for many prompts": (_COMPLETIONS, {**_MANY, "stop": ["x" * 15_000] * 4}),
    "many tools": ("/v1/responses", {"input": "a", "tools": [{"type": "functon"}] * 10_000}),
    "many tokens": ("/v1/detokenize", {"tokens": [5] * 80_000}),
    "a long text": ("/v1/tokenize", {"prompt": "a b" * 80_000}),
}


def send_heavy(watched: WatchedServer, findings: Findings, names: list[str]) -> None:
    """Sends them one after another; small completions and /health are asked for all the time."""
    for name in names:
        path, body = HEAVY[name]
        wire = request_bytes("POST", path, json.dumps(body).encode())
        watched.recent_wait = 0.0
        is_over = threading.Event()
        waits: list[float] = []
        other = threading.Thread(target=_complete, args=(watched, is_over, waits))
        other.start()
        try:
            begun = time.monotonic()
            answers = watched.send(wire, patience=200).answers
            seconds = time.monotonic() - begun
        finally:
            is_over.set()
            other.join()
        if not answers:
            findings.add(f"heavy: no answer to {name}", f"after {seconds:.1f} s")
        for answer in answers:
            for fault in faults(answer, "POST", []):
                findings.add(fault, f"heavy: {name}: {answer.body[:200]!r}")
        size = f"{len(wire) >> 10} KiB, answered after {seconds:.1f} s"
        if watched.recent_wait > LONGEST_STOP:
            findings.add(f"heavy: {name} stops the server", f"for {watched.recent_wait:.1f} s; {size}")
        if (longest := max(waits)) > LONGEST_WAIT_OF_OTHERS:
            findings.add(f"heavy: {name} keeps completions waiting", f"for {longest:.1f} s; {size}")
        watched.check_rest(f"heavy: {name}")


def _complete(watched: WatchedServer, is_over: threading.Event, waits: list[float]) -> None:
    while not waits or not is_over.wait(0.02):
        begun = time.monotonic()
        watched.ask("POST", _COMPLETIONS, {"prompt": "a", "max_tokens": 2})
        waits.append(time.monotonic() - begun)
