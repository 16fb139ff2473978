"""Answers the peers benchmark from a side's process; a peer's process imports nothing of MindBatch."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from bench.child_process import serve
from bench.process_memory import memory_bytes
from bench.rows import sorted_batches

INSTRUCTIONS = "BENCH_INSTRUCTION_SET"
"""The environment variable that limits the instruction set of our side."""
BATCHED_TOKENS = 512
"""Tokens of a step of a `SteppedPeer`, at most."""
Rows = Sequence[dict[str, Any]]
"""Each with `prompt` (token ids) and `answer_tokens` (how many are wanted): see rows.py."""


class Peer(Protocol):
    """A model that is loaded and decodes greedily, without an end token."""

    facts: str
    """Versions and options."""

    def generate(self, rows: Rows) -> list[list[int]]:
        """The tokens that each row wanted."""

    def decode(self, batch: int, context: int, steps: int) -> list[float]:
        """Seconds of steps of `batch` sequences that have `context` tokens before them."""

    def prefill(self, tokens: int, times: int) -> list[float]:
        """Seconds from a prompt of so many tokens to the token after it."""


class SteppedPeer(ABC):
    """A peer whose engine is advanced step by step, with at most BATCHED_TOKENS tokens in a step."""

    @abstractmethod
    def add(self, prompts: Iterable[tuple[list[int], int]]) -> object:
        """Queues prompts, each with the number of tokens that it wants."""

    @abstractmethod
    def step(self) -> None:
        """Computes one step."""

    @abstractmethod
    def finish(self) -> None:
        """Steps until all queued prompts have their tokens."""

    def decode(self, batch: int, context: int, steps: int) -> list[float]:
        chunks = -(-batch * context // BATCHED_TOKENS)
        self.add([(prompt, steps + chunks + 8) for prompt in consecutive(batch, context)])
        for _ in range(chunks + 2):
            self.step()
        seconds = [timed(self.step) for _ in range(steps)]
        self.finish()
        return seconds

    def prefill(self, tokens: int, times: int) -> list[float]:
        seconds = []
        for _ in range(times):
            self.add([(list(range(tokens)), 1)])
            seconds.append(timed(self.finish))
        return seconds


def padded_batches(
    rows: Rows, size: int, run: Callable[[list[int], int], list[list[int]]]
) -> list[list[int]]:
    """For what takes a batch at a time: rows sorted by their prompts, each batch until its longest answer.

    run: (indices of the rows, new tokens) -> their tokens.
    """
    answers: list[list[int]] = [[] for _ in rows]
    for batch in sorted_batches([len(row["prompt"]) for row in rows], size):
        longest = max(rows[index]["answer_tokens"] for index in batch)
        for index, tokens in zip(batch, run(batch, longest), strict=True):
            answers[index] = tokens[: rows[index]["answer_tokens"]]
    return answers


def consecutive(batch: int, context: int) -> list[list[int]]:
    """Prompts for `decode`: each begins one token later than the one before it."""
    return [list(range(index, index + context)) for index in range(batch)]


def timed(call: Callable[[], object]) -> float:
    """Seconds that a call took."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def serve_peer(load: Callable[[], Peer]) -> None:
    """Loads a model and answers requests. Memory is reported above what the libraries took before."""
    base = memory_bytes("VmRSS")
    peer = load()

    def answer(case: str, **options: Any) -> Any:
        if case == "memory":
            return memory_bytes("VmHWM") - base
        if case == "rows":
            return _timed_rows(peer, **options)
        numbers: list[float] = getattr(peer, case)(**options)
        return numbers

    serve(peer.facts, answer)


def _timed_rows(peer: Peer, rows: Rows) -> dict[str, Any]:
    started = time.perf_counter()
    answers = peer.generate(rows)
    seconds = time.perf_counter() - started
    if any(len(answer) != row["answer_tokens"] for answer, row in zip(answers, rows, strict=True)):
        raise SystemExit("a row has not the number of tokens that it wanted")
    return {"seconds": seconds, "answers": answers}


def run_peer(
    load: Callable[[str, str, int], Peer], convert: Callable[[str, str, str], None] | None = None
) -> None:
    """The main function of a side's script: `serve FOLDER KIND THREADS` or `convert SOURCE TARGET KIND`."""
    task, *arguments = sys.argv[1:]
    if task == "convert" and convert is not None:
        convert(*arguments)
        return
    folder, kind, threads = arguments
    serve_peer(lambda: load(folder, kind, int(threads)))
