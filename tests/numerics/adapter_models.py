"""Tiny models with random adapters beside them, run step by step; and the same models with them merged."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from model_folders import descriptions, random_tensor, write_folder
from numpy.typing import NDArray
from recording import pad_steps
from safetensors.numpy import save_file

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
from mindbatch.models import native
from mindbatch.models.adapter_weights import fit_specs
from mindbatch.models.model import Model
from mindbatch.models.model_spec import ModelSpec
from mindbatch.models.registry import describe, tensor_specs

PARAMS = DecodingParams(max_new_tokens=1)
SETTINGS = EngineSettings(batch_size=8, seq_length=16, block_size=16, num_blocks=8, max_batched_tokens=64)
GEOMETRY = CacheGeometry(SETTINGS.num_blocks, SETTINGS.block_size)
ALPHA = 24
TARGETS = {
    "gpt2": ("c_attn", "c_fc", "c_proj"),
    "llama": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
}

Arrays = dict[str, NDArray[np.float32]]


def targets_of(case: str) -> tuple[str, ...]:
    """Every linear layer of a case's blocks."""
    return TARGETS["gpt2" if case.startswith("gpt2") else "llama"]


def write_adapter(folder: Path, case: str, rank: int, targets: Sequence[str]) -> Arrays:
    """A PEFT folder for a case of `model_folders`; returns what it adds to each tensor, as it is stored."""
    is_gpt2 = case.startswith("gpt2")
    matrices, added = {}, {}
    for name, (shape, _) in descriptions()[case]["tensors"].items():
        module = name.removesuffix(".weight")
        if len(shape) != 2 or module.rpartition(".")[2] not in targets:
            continue
        outputs, inputs = shape[::-1] if is_gpt2 else shape
        a = random_tensor(f"{folder.name}.{name}.a", [rank, inputs], 0.5)
        b = random_tensor(f"{folder.name}.{name}.b", [outputs, rank], 0.1)
        delta = (np.float32(ALPHA / rank) * b @ a).astype(np.float32)
        added[name] = delta.T if is_gpt2 else delta
        matrices[f"base_model.model.{module}.lora_A.weight"] = a
        matrices[f"base_model.model.{module}.lora_B.weight"] = b
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": ALPHA, "target_modules": [*targets]}
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({**settings, "fan_in_fan_out": is_gpt2}))
    save_file(matrices, folder / "adapter_model.safetensors")
    return added


def write_merged(folder: Path, case: str, added: Mapping[str, NDArray[np.float32]]) -> None:
    """The case's folder with what an adapter adds to its tensors."""
    description = descriptions()[case]
    write_folder(folder, description | {"dtype": "float32", "shards": 1})
    tensors = {
        name: np.ascontiguousarray(random_tensor(name, shape, spread) + added.get(name, np.float32(0)))
        for name, (shape, spread) in description["tensors"].items()
    }
    save_file(tensors, folder / "model.safetensors")


def loaded(
    folder: Path, kernels: Kernels, adapters: Mapping[str, Path] | None = None, max_loaded: int | None = None
) -> Model:
    """The model of a folder, and adapters that it may be computed with."""
    with ModelFolder(str(folder)) as model:
        arch, fitted = describe(model.config), None
        if adapters is not None:
            opened = {name: open_adapter(path) for name, path in adapters.items()}
            fitted = fit_specs(tensor_specs(arch), opened, max_loaded)
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


def prompts(case: str, count: int = 6) -> list[list[int]]:
    """Prompts of different lengths."""
    config: dict[str, Any] = descriptions()[case]["config"]
    return [[(7 * row + 3 * at) % config["vocab_size"] for at in range(3 + row)] for row in range(count)]
