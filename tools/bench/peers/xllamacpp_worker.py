"""llama.cpp's side of the gguf benchmark, through xllamacpp: by its own clocks."""

from __future__ import annotations

import json
import sys

import xllamacpp

from bench.child_process import serve

TOKENS = 64
PROMPT = "The quick brown fox jumps over the lazy dog, and then it rests. " * 16


def main() -> None:
    """Answers requests for the seconds of a token, or of a prompt; None for several sequences."""
    file, threads = sys.argv[1:]
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.verbosity = file, 4096, 1, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(threads)
    server = xllamacpp.Server(params)

    def timings(prompt: str, tokens: int) -> dict[str, float]:
        request = {"prompt": prompt, "n_predict": tokens, "temperature": 0, "cache_prompt": False}
        answer = server.handle_completions(request)
        return dict((json.loads(answer) if isinstance(answer, str) else answer)["timings"])

    def seconds(sequences: int) -> float | None:
        if sequences > 1:
            return None
        if sequences:
            return timings("Water boils at a temperature of", TOKENS)["predicted_per_token_ms"] / 1e3
        return timings(PROMPT, 1)["prompt_ms"] / 1e3

    timings("a", 2)
    serve(f"xllamacpp {xllamacpp.__version__}", seconds)
