"""A GPT-2 folder with random weights, for benchmarks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

GPT2_124M = {"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12}


def write_random_gpt2(folder: Path, shape: dict[str, int] = GPT2_124M, seed: int = 0) -> int:
    """Writes config.json and model.safetensors (float32); returns the bytes of the weights."""
    generator = np.random.default_rng(seed)
    width, tensors = shape["n_embd"], {}

    def matrix(name: str, rows: int, columns: int) -> None:
        tensors[name] = generator.standard_normal((rows, columns), np.float32) * np.float32(0.02)

    def norm(name: str) -> None:
        tensors[f"{name}.weight"] = np.ones(width, np.float32)
        tensors[f"{name}.bias"] = np.zeros(width, np.float32)

    def linear(name: str, inputs: int, outputs: int) -> None:
        matrix(f"{name}.weight", inputs, outputs)
        tensors[f"{name}.bias"] = np.zeros(outputs, np.float32)

    matrix("transformer.wte.weight", shape["vocab_size"], width)
    matrix("transformer.wpe.weight", shape["n_positions"], width)
    for layer in range(shape["n_layer"]):
        name = f"transformer.h.{layer}"
        norm(f"{name}.ln_1")
        linear(f"{name}.attn.c_attn", width, 3 * width)
        linear(f"{name}.attn.c_proj", width, width)
        norm(f"{name}.ln_2")
        linear(f"{name}.mlp.c_fc", width, 4 * width)
        linear(f"{name}.mlp.c_proj", 4 * width, width)
    norm("transformer.ln_f")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = {
        **shape,
        "model_type": "gpt2",
        "bos_token_id": 0,
        "eos_token_id": 0,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return sum(tensor.nbytes for tensor in tensors.values())
