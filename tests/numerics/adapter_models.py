"""Tiny models with adapters beside them, run step by step."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from recording import pad_steps

from mindbatch.backends import native
from mindbatch.backends.model import Model
from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.checkpoint.lora.adapter import open_adapter
from mindbatch.decoding import DecodingParams
from mindbatch.decoding.registry import strategy_for
from mindbatch.decoding.row import Row
from mindbatch.engine.model_runner import ModelRunner
from mindbatch.engine.request import Request
from mindbatch.engine.sequence import Sequence as TokenSequence
from mindbatch.engine.sequence import SequenceGroup
from mindbatch.engine.settings import EngineSettings
from mindbatch.engine.step import ScheduledTokens, Step
from mindbatch.kernels.interface import Kernels
from mindbatch.kernels.shapes import CacheGeometry
from mindbatch.model_spec.model_spec import ModelSpec
from mindbatch.model_spec.registry import describe

PARAMS = DecodingParams(max_new_tokens=1)
SETTINGS = EngineSettings(batch_size=8, seq_length=16, block_size=16, num_blocks=8, max_batched_tokens=64)
GEOMETRY = CacheGeometry(SETTINGS.num_blocks, SETTINGS.block_size)


def loaded(folder: Path, kernels: Kernels, adapters: Mapping[str, Path] | None = None) -> Model:
    """The model of a folder, and adapters that it may be computed with."""
    with ModelFolder(str(folder)) as model:
        arch, fitted = describe(model.config), None
        if adapters is not None:
            opened = {name: open_adapter(path) for name, path in adapters.items()}
            fitted = native.fit_adapters(ModelSpec.of(arch), opened)
        return native.load(ModelSpec.of(arch), model, kernels, GEOMETRY, adapters=fitted)


def runner_of(model: Model) -> ModelRunner:
    """Runs the model's steps; they are padded to one size, so that few graphs are compiled."""
    runner = ModelRunner(model, SETTINGS)
    pad_steps(runner, [SETTINGS.max_batched_tokens])
    return runner


def logits(model: Model, rows: Sequence[tuple[list[int], int]]) -> list[NDArray[np.float32]]:
    """Of every token of prompts, each with the adapter of a slot, computed in one step."""
    return logits_of(runner_of(model), rows)


def logits_of(
    runner: ModelRunner, rows: Sequence[tuple[list[int], int]], num_logits: int | None = None
) -> list[NDArray[np.float32]]:
    """Of the last `num_logits` tokens of each prompt, or of all."""
    scheduled, wanted, start = [], [], 0
    for number, (ids, slot) in enumerate(rows):
        sequence = TokenSequence(Row(PARAMS, tuple(ids), [], (), number), None, block_table=[number])
        group = SequenceGroup(Request(str(number), tuple(ids), PARAMS), strategy_for(PARAMS), [sequence], 99)
        count = num_logits or len(ids)
        scheduled.append(ScheduledTokens(group, sequence, 0, len(ids), count, slot))
        start += len(ids)
        wanted.append(list(range(start - count, start)))
    output = runner.run(Step(scheduled, num_tokens=start))
    every = output.logits([token for tokens in wanted for token in tokens])
    return np.split(np.array(every), np.cumsum([len(tokens) for tokens in wanted])[:-1])
