"""Worker of the batch benchmark: runs all rows in slices, so that the other side has its turns."""

from __future__ import annotations

import sys
import time
from typing import Any

from bench.child_process import serve
from mindbatch import LLM, DecodingParams
from mindbatch.config.environment import prepare_environment
from mindbatch.engine.engine import StepResult
from mindbatch.kernels.native_library import library_text
from mindbatch.prompts.prompts import Prompt


class Run:
    """One pass over the rows, in the order given; the clock runs only while it works.

    seconds: of the steps that only decode, and of those that compute prompts (and decode beside them).
    """

    def __init__(self, llm: LLM, rows: list[dict[str, Any]]) -> None:
        self._llm = llm
        self._steps = llm.steps(
            (
                Prompt(key=str(number), source="rows", token_ids=row["prompt"]),
                DecodingParams(max_new_tokens=row["answer_tokens"], eos_token_id=()),
            )
            for number, row in enumerate(rows)
        )
        self._answers: list[list[int]] = [[] for _ in rows]
        self._seconds = {"prompts": 0.0, "decoding": 0.0}
        self._before = llm.statistics
        self._tokens = 0

    def advance(self, tokens: int | None) -> dict[str, Any] | None:
        """Works until so many tokens are generated, or to the end; what was found once all rows are done."""
        while tokens is None or self._tokens < tokens:
            started = time.perf_counter()
            result = next(self._steps, None)
            seconds = time.perf_counter() - started
            if result is None:
                return {"seconds": self._seconds, "answers": self._answers, **self._waste()}
            self._note(result, seconds)
        return None

    def _note(self, result: StepResult, seconds: float) -> None:
        now, before = self._llm.statistics, self._before
        only_decodes = now.computed_tokens - before.computed_tokens == len(result.events)
        self._seconds["decoding" if only_decodes else "prompts"] += seconds
        self._before = now
        self._tokens += len(result.events)
        for output in result.finished:
            if output.error is not None:
                raise SystemExit(output.error)
            self._answers[int(output.key)] = output.outputs[0].token_ids

    def _waste(self) -> dict[str, float]:
        """Sums over all runs so far: empty slots of the cache, and prompt tokens that were found in it."""
        return {"cache_waste": self._before.cache_waste, "prefix_hit_rate": self._before.prefix_hit_rate}


class Bench:
    """Answers the requests of the benchmark: `rows` begins a run, `advance` goes on with it."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._run = Run(llm, [])

    def answer(self, rows: list[dict[str, Any]] | None = None, advance: int | None = None) -> Any:
        """One request."""
        if rows is not None:
            self._run = Run(self._llm, rows)
            return None
        return self._run.advance(advance)


def main() -> None:
    """Answers requests until standard input ends."""
    folder, cache_memory = sys.argv[1], sys.argv[4]
    threads, batch_size, block_size = (int(sys.argv[number]) for number in (2, 3, 5))
    prepare_environment(num_threads=threads)
    import mindspore

    llm = LLM(
        folder,
        batch_size=batch_size,
        cache_memory=cache_memory,
        block_size=block_size,
        num_threads=threads,
    )
    serve(f"MindSpore {mindspore.__version__}, kernels {library_text()}", Bench(llm).answer)
