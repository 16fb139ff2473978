"""Random LoRA adapters for the shipped model, as PEFT stores them."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

TINY = Path(__file__).parents[2] / "examples/tiny_gpt2"
TARGETS = ("c_attn", "c_fc", "c_proj")


def write_adapter(folder: Path, rank: int, seed: int, spread: float = 1.0) -> Path:
    """An adapter of all linear layers of the shipped GPT-2."""
    config = json.loads((TINY / "config.json").read_bytes())
    width, inner = config["n_embd"], config.get("n_inner") or 4 * config["n_embd"]
    modules = {
        "attn.c_attn": (width, 3 * width),
        "attn.c_proj": (width, width),
        "mlp.c_fc": (width, inner),
        "mlp.c_proj": (inner, width),
    }
    random, tensors = np.random.default_rng(seed), {}
    for layer in range(config["n_layer"]):
        for module, (inputs, outputs) in modules.items():
            name = f"base_model.model.transformer.h.{layer}.{module}"
            for half, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
                values = random.standard_normal(shape).astype(np.float32)
                tensors[f"{name}.lora_{half}.weight"] = values * np.float32(spread / np.sqrt(shape[1]))
    folder.mkdir(parents=True)
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": [*TARGETS]}
    (folder / "adapter_config.json").write_text(json.dumps({**settings, "fan_in_fan_out": True}))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder
