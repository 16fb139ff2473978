"""llama.cpp's side of the peers benchmark: its own batches of sequences, through llama-cpp-python."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import llama_cpp as llama
import numpy as np

from bench.gguf_file import write_gguf
from bench.peers.peer import BATCHED_TOKENS, Rows, SteppedPeer, run_peer

SEQUENCES, CACHED_TOKENS = 64, 64 * 384
"""Sequences at a time; tokens of the cache, which they share."""
FILE = "model.gguf"


@dataclass
class Sequence:
    """A prompt, how much of it is in the cache, and the tokens after it."""

    prompt: list[int]
    wanted: int
    slot: int = -1
    cached: int = 0
    tokens: list[int] = field(default_factory=list)

    def next_tokens(self, max_tokens: int) -> list[int]:
        """Returns the input of the next step: a part of the prompt, or the last token."""
        left = self.prompt[self.cached : self.cached + max_tokens]
        return left or self.tokens[-1:]

    @property
    def decodes(self) -> bool:
        """True if its prompt is in the cache."""
        return self.cached >= len(self.prompt)


class LlamaCpp(SteppedPeer):
    """Steps of up to 512 tokens: one of each sequence that decodes, and prompts in what is left."""

    def __init__(self, path: Path, threads: int, kind: str) -> None:
        options = llama.llama_context_default_params()
        options.n_ctx, options.n_seq_max, options.kv_unified = CACHED_TOKENS, SEQUENCES, True
        options.n_batch = options.n_ubatch = BATCHED_TOKENS
        if kind == "float32":  # else its cache is float16
            options.type_k = options.type_v = llama.GGML_TYPE_F32
        options.n_threads = options.n_threads_batch = threads
        model = llama.llama_model_load_from_file(str(path).encode(), llama.llama_model_default_params())
        self._context = llama.llama_init_from_model(model, options)
        self._vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
        self._batch = llama.llama_batch_init(BATCHED_TOKENS, 0, 1)
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        sets = llama.llama_print_system_info().decode().partition(":")[2].replace(" = 1", "")
        self.facts = (
            f"llama-cpp-python {llama.__version__}, {kind}, {SEQUENCES} sequences, {sets.strip(' |')}"
        )

    def generate(self, rows: Rows) -> list[list[int]]:
        sequences = self.add([(row["prompt"], row["answer_tokens"]) for row in rows])
        self.finish()
        return [sequence.tokens for sequence in sequences]

    def add(self, prompts: Iterable[tuple[list[int], int]]) -> list[Sequence]:
        sequences = [Sequence(prompt, wanted) for prompt, wanted in prompts]
        self._waiting.extend(sequences)
        return sequences

    def finish(self) -> None:
        while self._waiting or self._running:
            self.step()

    def step(self) -> None:
        free = sorted({*range(SEQUENCES)} - {sequence.slot for sequence in self._running})
        while self._waiting and free:
            sequence = self._waiting.popleft()
            sequence.slot = free.pop(0)
            self._running.append(sequence)
        for sequence, index in self._compute():
            sequence.tokens.append(self._likeliest(index))
        for sequence in [sequence for sequence in self._running if len(sequence.tokens) == sequence.wanted]:
            self._running.remove(sequence)
            llama.llama_memory_seq_rm(llama.llama_get_memory(self._context), sequence.slot, -1, -1)

    def _compute(self) -> list[tuple[Sequence, int]]:
        """Computes one step; returns the sequences with a next token, and the index of each in the step."""
        batch, answers = self._batch, []
        batch.n_tokens = 0
        for sequence in sorted(self._running, key=lambda sequence: not sequence.decodes):
            for token in sequence.next_tokens(BATCHED_TOKENS - batch.n_tokens):
                at, position = batch.n_tokens, sequence.cached
                if at == BATCHED_TOKENS:
                    break
                sequence.cached += 1
                batch.token[at], batch.pos[at] = token, position
                batch.n_seq_id[at], batch.seq_id[at][0] = 1, sequence.slot
                batch.logits[at] = sequence.cached >= len(sequence.prompt)
                if batch.logits[at]:
                    answers.append((sequence, at))
                batch.n_tokens += 1
        if llama.llama_decode(self._context, batch) != 0:
            raise SystemExit("llama_decode has failed")
        return answers

    def _likeliest(self, index: int) -> int:
        logits = llama.llama_get_logits_ith(self._context, index)
        return int(np.ctypeslib.as_array(logits, (self._vocabulary,)).argmax())


def load(folder: str, kind: str, threads: int) -> LlamaCpp:
    """A converted folder."""
    _quiet()
    return LlamaCpp(Path(folder, FILE), threads, kind)


@llama.llama_log_callback
def _no_messages(level: int, text: bytes, data: Any) -> None:
    """Takes what the library would print, which is the protocol's line."""


def _quiet() -> None:
    llama.llama_log_set(_no_messages, None)
    llama.llama_backend_init()


def convert(source: str, target: str, kind: str) -> None:
    """Writes a Hugging Face folder of GPT-2 or Qwen2 as a GGUF file; int8 is its Q8_0, a scale for 32."""
    whole = Path(target, "float32.gguf" if kind == "int8" else FILE)
    whole.parent.mkdir(parents=True, exist_ok=True)
    write_gguf(Path(source), whole)
    if kind == "int8":
        _quiet()
        options = llama.llama_model_quantize_default_params()
        options.ftype = llama.LLAMA_FTYPE_MOSTLY_Q8_0
        names = (str(whole).encode(), str(whole.with_name(FILE)).encode())
        if llama.llama_model_quantize(*names, options) != 0:
            raise SystemExit("llama_model_quantize has failed")
        whole.unlink()


def main() -> None:
    run_peer(load, convert)
