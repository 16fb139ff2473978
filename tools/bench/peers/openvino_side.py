"""OpenVINO GenAI's side of the peers benchmark: its continuous batching."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai

from bench.peers.peer import BATCHED_TOKENS, Rows, SteppedPeer, run_peer

CACHE_GIB = 1
FLOAT32 = {"INFERENCE_PRECISION_HINT": "f32"}
HINTS = {
    "float32": {**FLOAT32, "KV_CACHE_PRECISION": "f32"},
    "float32, half cache": FLOAT32,
    "default": {},
    "int8": {},
}
"""Settings of the pipeline's arithmetic, by kind; the exported folder has the type of the weights.

Keys and values are kept in float16 unless a setting says otherwise, with float32 arithmetic too.
"""


class OpenVINO(SteppedPeer):
    """A pipeline with a cache of 1 GiB and steps of at most 512 tokens."""

    def __init__(self, pipeline: Any, facts: str) -> None:
        self._pipeline, self.facts = pipeline, facts
        self._handles: list[Any] = []
        self._next = 0

    def generate(self, rows: Rows) -> list[list[int]]:
        self.add([(row["prompt"], row["answer_tokens"]) for row in rows])
        self.finish()
        return [handle.read_all()[0].generated_ids for handle in self._handles]

    def add(self, prompts: Iterable[tuple[list[int], int]]) -> None:
        self._handles = []
        for ids, new_tokens in prompts:
            config = genai.GenerationConfig(max_new_tokens=new_tokens, ignore_eos=True)
            tensor = openvino.Tensor(np.array([ids], np.int64))
            self._handles.append(self._pipeline.add_request(self._next, tensor, config))
            self._next += 1

    def step(self) -> None:
        self._pipeline.step()

    def finish(self) -> None:
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()


def load(folder: str, kind: str, threads: int) -> OpenVINO:
    """An exported folder; `default` leaves the arithmetic to OpenVINO."""
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size, scheduler.max_num_batched_tokens = CACHE_GIB, BATCHED_TOKENS
    options = {"INFERENCE_NUM_THREADS": threads, **HINTS[kind]}
    pipeline = genai.ContinuousBatchingPipeline(folder, scheduler, "CPU", options)
    return OpenVINO(
        pipeline, f"OpenVINO GenAI {genai.__version__}, cache {CACHE_GIB} GiB, {HINTS[kind] or 'defaults'}"
    )


def convert(source: str, target: str, kind: str) -> None:
    """Exports a Hugging Face folder; in int8 with weights that NNCF rounds, a scale for each output."""
    from optimum.exporters.openvino import main_export
    from optimum.intel import OVConfig

    main_export(source, target, task="text-generation-with-past", ov_config=OVConfig(dtype="fp32"))
    if kind == "int8":
        _compress(Path(target))


def _compress(folder: Path) -> None:
    import nncf

    with TemporaryDirectory(dir=folder) as name:
        model = nncf.compress_weights(openvino.Core().read_model(folder / "openvino_model.xml"))
        openvino.save_model(model, Path(name, "openvino_model.xml"), compress_to_fp16=False)
        del model  # has the weights that are replaced mapped
        for file in Path(name).iterdir():
            file.replace(folder / file.name)


def main() -> None:
    run_peer(load, convert)
