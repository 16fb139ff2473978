"""The tables of the peers benchmark: figures, the machine's bounds, and ours beside each peer's."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.peers.peer import Rows
from mindbatch.model_spec.registry import describe

FIRST, MEMORY = "first token, cold s", "peak MB"
DECODE, PREFILL = (1, 8, 32), (256, 2048)
BYTES = {"float32": 4.0, "bfloat16": 2.0, "int8": 1.0, "int4": 0.5}
"""By type: bytes of a weight."""
CACHE_BYTES = {"float32": 4.0}
"""By type: bytes of a number in the cache, else 2."""
TOGETHER = 64
"""Rows that are in one batch."""
WIDTH = 18


@dataclass
class Figures:
    """Results of a side: for each case a number per round, and why it did not run the others."""

    rounds: dict[str, list[float]] = field(default_factory=dict)
    reason: str | None = None
    facts: str = ""
    answers: list[list[int]] = field(default_factory=list)
    """Of the first round's first rows, which are the same for every side."""

    def note(self, case: str, value: float) -> None:
        """One round's figure."""
        self.rounds.setdefault(case, []).append(value)

    def median(self, case: str) -> float | None:
        """None where there is none."""
        return statistics.median(self.rounds[case]) if case in self.rounds else None


@dataclass(frozen=True)
class Machine:
    """Bounds of the machine, measured first.

    bandwidth: bytes/s that are read. flops: float32 operations/s of NumPy's matrix product.
    """

    bandwidth: float
    flops: float


@dataclass(frozen=True)
class Sizes:
    """Counts of numbers of a model.

    matrices: weights that a token is multiplied with in linear layers. head: weights of its logits.
    all: all weights. cached: numbers in the cache of a token.
    """

    matrices: int
    head: int
    all: int
    cached: int


def sizes_of(config: Mapping[str, Any], weight_bytes: int) -> Sizes:
    """Counts the numbers of a float32 folder whose head is the embedding."""
    arch = describe(dict(config))
    head = arch.vocab_size * arch.hidden_size
    positions = config.get("n_positions", 0) * arch.hidden_size
    layers = map(arch.heads_of, filter(arch.has_cache, range(arch.num_layers)))
    cached = sum(2 * heads.kv_heads * heads.head_dim for heads in layers)
    return Sizes(weight_bytes // 4 - head - positions, head, weight_bytes // 4, cached)


def float32_flops(rounds: int = 5, size: int = 2048) -> float:
    """Operations per second of NumPy's product of two square matrices, the best of some rounds."""
    one = np.random.default_rng(0).standard_normal((size, size), np.float32)
    seconds = []
    for _ in range(rounds):
        started = time.perf_counter()
        np.dot(one, one)
        seconds.append(time.perf_counter() - started)
    return 2 * size**3 / min(seconds)


def rows_case(count: int, state: str) -> str:
    """The name of a column of ragged rows; state: fresh or warm."""
    return f"{count} rows, {state} s"


def decode_case(batch: int) -> str:
    """The name of a column of decoding."""
    return f"decode {batch} ms"


def prefill_case(tokens: int) -> str:
    """The name of a column of one prompt."""
    return f"prefill {tokens} ms"


def context_case(tokens: int) -> str:
    """The name of a column of one sequence that has so many tokens before it."""
    return f"decode 1 at {tokens} ms"


def cases_of(counts: Sequence[int], contexts: Sequence[int]) -> list[str]:
    """The columns; counts: of rows, the fewest first. contexts: tokens of long contexts."""
    rows = [rows_case(counts[0], "fresh"), *(rows_case(count, "warm") for count in counts)]
    steps = [*map(decode_case, DECODE), *map(context_case, contexts)]
    return [FIRST, *rows, *steps, *map(prefill_case, (*PREFILL, *contexts)), MEMORY]


def bounds(
    sizes: Sizes, machine: Machine, rows: Mapping[int, Rows], contexts: Sequence[int], kind: str
) -> Figures:
    """The least time of each case: matrices, and keys and values of long contexts, read once a step at the
    measured bandwidth, and for float32 the operations of the products at the measured rate (attention's and
    all else left out). The least memory is that of the weights and of what is kept of the rows that are
    together, at their ends."""
    figures = Figures()
    figures.note(MEMORY, _least_bytes(sizes, [*rows.values()], kind) / 1e6)
    read = (sizes.matrices + sizes.head) * BYTES[kind] / machine.bandwidth
    rate = machine.flops if kind == "float32" else float("inf")
    for batch in DECODE:
        computed = 2 * batch * (sizes.matrices + sizes.head) / rate
        figures.note(decode_case(batch), max(read, computed) * 1e3)
    for tokens in contexts:
        kept = tokens * sizes.cached * CACHE_BYTES.get(kind, 2.0)
        figures.note(context_case(tokens), read * 1e3 + kept / machine.bandwidth * 1e3)
    if kind != "float32":
        return figures
    for tokens in (*PREFILL, *contexts):
        figures.note(prefill_case(tokens), 2 * (tokens * sizes.matrices + sizes.head) / rate * 1e3)
    for count, some in rows.items():
        answers = sum(row["answer_tokens"] for row in some)
        tokens = sum(len(row["prompt"]) for row in some) + answers - len(some)
        seconds = 2 * (tokens * sizes.matrices + answers * sizes.head) / rate
        for state in ("fresh", "warm"):
            figures.note(rows_case(count, state), seconds)
    return figures


def _least_bytes(sizes: Sizes, batches: Sequence[Rows], kind: str) -> float:
    tokens = [
        sorted((len(row["prompt"]) + row["answer_tokens"] for row in rows), reverse=True) for rows in batches
    ]
    longest = max(sum(lengths[:TOGETHER]) for lengths in tokens)
    return sizes.all * BYTES[kind] + longest * sizes.cached * CACHE_BYTES.get(kind, 2.0)


def page(
    cases: Sequence[str],
    sides: Mapping[str, Figures],
    floors: Mapping[str, Figures],
    rivals: Mapping[str, str],
) -> Iterable[str]:
    """Lines: medians of each side and the bounds; then ours by each peer's, below 1 where ours is faster."""
    yield from _heading("medians", [*cases, "rounds"])
    for name, figures in {**sides, **floors}.items():
        rounds = str(max(map(len, figures.rounds.values()), default=0)) if name in sides else "-"
        yield _line(name, [*(_cell(figures.median(case)) for case in cases), rounds])
    yield ""
    yield from _heading("ours / peer", cases)
    for peer, own in rivals.items():
        if peer in sides and own in sides:
            ratios = [_ratio(sides[own].median(case), sides[peer].median(case)) for case in cases]
            yield _line(f"{own.removeprefix('ours ')} / {peer}", ratios)
    yield ""
    for name, figures in sides.items():
        lacking = [case for case in cases if case not in figures.rounds]
        if figures.reason or lacking:
            yield f"{name}: no {', '.join(lacking) or 'further rounds'}: {figures.reason or 'not requested'}"
    yield from (f"{name}: {figures.facts}" for name, figures in sides.items() if figures.facts)
    yield from same_answers(sides, next(iter(sides)))


def same_answers(sides: Mapping[str, Figures], reference: str) -> Iterable[str]:
    """How many rows each side answered with the same tokens as `reference`: whether it did the same work."""
    expected = sides[reference].answers if reference in sides else []
    for name, figures in sides.items():
        if name != reference and expected and figures.answers:
            same = sum(one == other for one, other in zip(figures.answers, expected, strict=True))
            yield f"{name}: {same} of {len(expected)} rows with the tokens of {reference}"


def _heading(title: str, cases: Sequence[str]) -> Iterable[str]:
    yield _line(title, cases)
    yield f"|{'-' * 42}|" + f"{'-' * (WIDTH + 1)}:|" * len(cases)


def _line(name: str, cells: Iterable[str]) -> str:
    return f"| {name:<40} |" + "".join(f" {cell:>{WIDTH}} |" for cell in cells)


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}" if value >= 1000 else f"{value:.1f}"


def _ratio(own: float | None, other: float | None) -> str:
    return "-" if own is None or not other else f"{own / other:.2f}"
