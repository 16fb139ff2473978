"""LoRA adapters of PEFT and MindFormers, small and right unless told otherwise."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors_writer import safetensors_bytes

from mindbatch.checkpoint.formats.ckpt_file import ckpt_layout
from tensor_files import write_tensor_file

RANK, OUTPUTS, INPUTS, VOCABULARY = 2, 6, 4, 7
MODULES = tuple(
    f"model.layers.{layer}.self_attn.{name}" for layer in range(2) for name in ("q_proj", "v_proj")
)
SHAPES = {
    **{f"{module}.weight": (OUTPUTS, INPUTS) for module in MODULES},
    **{f"model.layers.{layer}.self_attn.k_proj.weight": (OUTPUTS, INPUTS) for layer in range(2)},
}
FULL_SHAPES = SHAPES | dict.fromkeys(("embed_tokens.weight", "lm_head.weight"), (VOCABULARY, INPUTS))
CONFIG: dict[str, Any] = {
    "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": 3, "lora_dropout": 0.05,
    "target_modules": ["q_proj", "v_proj"], "bias": "none", "fan_in_fan_out": False, "inference_mode": True,
    "modules_to_save": None, "rank_pattern": {}, "alpha_pattern": {}, "use_dora": False, "use_rslora": False,
    "init_lora_weights": True, "base_model_name_or_path": "somewhere", "layers_to_transform": None,
}  # fmt: skip


def matrices(
    template: str = "base_model.model.{module}.lora_{which}.weight", letters: str = "AB"
) -> dict[str, np.ndarray]:
    """A and B of every module."""
    random = np.random.default_rng(3)
    found = {}
    for module in MODULES:
        for which, shape in zip(letters, ((RANK, INPUTS), (OUTPUTS, RANK)), strict=True):
            found[template.format(module=module, which=which)] = random.normal(size=shape).astype(np.float32)
    return found


def write_adapter(
    folder: Path,
    tensors: Mapping[str, np.ndarray] | None = None,
    config: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Path:
    """A PEFT folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({**(config or CONFIG), **changes}))
    data = safetensors_bytes(matrices() if tensors is None else tensors)
    (folder / "adapter_model.safetensors").write_bytes(data)
    return folder


def write_full_adapter(folder: Path) -> Path:
    """A PEFT folder with all that an adapter may have at once, of FULL_SHAPES."""
    random = np.random.default_rng(4)
    found = matrices()
    for module in MODULES:
        found[f"base_model.model.{module}.lora_magnitude_vector"] = np.ones(OUTPUTS, np.float32)
    for end, shape in (
        ("embed_tokens.lora_embedding_A", (RANK, VOCABULARY)),
        ("embed_tokens.lora_embedding_B", (INPUTS, RANK)),
        ("embed_tokens.lora_magnitude_vector", (INPUTS,)),
        ("embed_tokens.base_layer.weight", (VOCABULARY, INPUTS)),
        ("lm_head.weight", (VOCABULARY, INPUTS)),
    ):
        found[f"base_model.model.{end}"] = random.normal(size=shape).astype(np.float32)
    return write_adapter(
        folder,
        found,
        target_modules=r"(?!lm_head).*(q_proj|v_proj|embed_tokens)",
        exclude_modules=["k_proj"],
        modules_to_save=["lm_head"],
        rank_pattern={r"layers\.\d+\..*": RANK},
        alpha_pattern={"v_proj": 5, r"^embed_tokens": 2},
        use_dora=True,
        use_rslora=True,
    )


def write_mindformers_adapter(
    folder: Path, tensors: Mapping[str, np.ndarray], config: Mapping[str, Any]
) -> Path:
    """A MindFormers folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    layout = ckpt_layout([(name, "F32", array.shape) for name, array in tensors.items()])
    write_tensor_file(folder / "adapter_model.ckpt", layout, lambda name: [tensors[name].tobytes()])
    return folder
