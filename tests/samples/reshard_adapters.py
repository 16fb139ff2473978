"""Small LoRA adapters for the models of reshard_models, and what a merge of them must give."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mindbatch.checkpoint.formats.floats import array_type, converted
from mindbatch.checkpoint.lora.adapter import LoraAdapter, open_adapter
from mindbatch.checkpoint.lora.modules import product
from mindbatch.checkpoint.lora.plan import BaseTensors, adapted_weights
from mindbatch.checkpoint.placement.regions import full_region
from mindbatch.tasks.reshard.schema import ReshardConfig
from mindbatch.tasks.reshard.task import run
from reshard_models import LLAMA, source_shapes_of, write_tensors

RANK, ALPHA = 3, 6
TARGETS = {
    "llama": ("q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "lm_head"),
    "gpt2": ("c_attn", "c_fc", "c_proj"),
}
TALL = {**LLAMA, "vocab_size": 1101, "hidden_size": 64, "intermediate_size": 1100, "num_hidden_layers": 1}
"""Products of several tiles, of rows and of columns."""

Stored = tuple[str, tuple[int, ...], bytes]


def matrices_of(
    config: Mapping[str, Any], targets: Sequence[str], *, fan_in_fan_out: bool, seed: int = 7
) -> dict[str, NDArray[np.float32]]:
    """lora_A and lora_B of every module whose name ends in a target."""
    chance, found = np.random.default_rng(seed), {}
    for name, shape in source_shapes_of(config).items():
        module = name.removesuffix(".weight")
        if name == module or module.rpartition(".")[2] not in targets:
            continue
        outputs, inputs = shape[::-1] if fan_in_fan_out else shape
        for which, size in (("A", (RANK, inputs)), ("B", (outputs, RANK))):
            key = f"base_model.model.{module}.lora_{which}.weight"
            found[key] = chance.normal(size=size).astype(np.float32)
    return found


def write_adapter_for(
    folder: Path, config: Mapping[str, Any], *, seed: int = 7, factor: float = 1.0, **changes: Any
) -> Path:
    """A PEFT folder. factor: on all matrices B. changes: of adapter_config.json; None leaves a key out."""
    is_gpt2 = config["model_type"] == "gpt2"
    targets = TARGETS["gpt2" if is_gpt2 else "llama"]
    folder.mkdir()
    content = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": ALPHA,
        "target_modules": [*targets],
        "fan_in_fan_out": is_gpt2,
        **changes,
    }
    left = {key: value for key, value in content.items() if value is not None}
    (folder / "adapter_config.json").write_text(json.dumps(left))
    arrays = matrices_of(config, targets, fan_in_fan_out=is_gpt2, seed=seed)
    arrays = {name: array * np.float32(factor if "lora_B" in name else 1) for name, array in arrays.items()}
    write_tensors(folder / "adapter_model.safetensors", arrays, "F32")
    return folder


def product_of(adapter: LoraAdapter, weight: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The whole of what is added to a weight of this shape."""
    [module] = [found for name, found in adapter.modules.items() if weight.endswith(f"{name}.weight")]
    low_rank, is_turned = module.low_rank(), adapter.settings.fan_in_fan_out
    full = full_region(shape[::-1] if is_turned else shape)
    found = product(low_rank.b, low_rank.a, full, np.float32(low_rank.scaling))
    return found.T if is_turned else found


def merged_at_once(held: Mapping[str, Stored], folder: Path) -> dict[str, Stored]:
    """All tensors of a full checkpoint, with the adapter added to whole weights at once and rounded once."""
    adapter = open_adapter(folder)
    found = dict(held)
    for name in adapted_weights(adapter, BaseTensors({name: shape for name, (_, shape, _) in held.items()})):
        dtype, shape, data = held[name]
        stored = np.frombuffer(data, array_type(dtype)).reshape(shape)
        wide, _ = converted(stored, dtype, "F32")
        rounded, _ = converted(wide + product_of(adapter, name, shape), "F32", dtype)
        found[name] = (dtype, shape, rounded.tobytes())
    return found


def reshard(source: Path, target: Path, adapter: Path | None = None, **options: Any) -> None:
    """Runs the task. Options of the target are written target_NAME."""
    config = ReshardConfig(source=str(source))
    config.target.dir, config.lora.merge = str(target), adapter and str(adapter)
    config.lora.scaling = options.pop("scaling", None)
    for name, value in options.items():
        section = config.target if name.startswith("target_") else config
        name = name.removeprefix("target_")
        assert hasattr(section, name)
        setattr(section, name, value)
    assert run(config) == 0
