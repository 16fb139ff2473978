"""Hugging Face folders with random weights, for benchmarks: GPT-2 and Qwen2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

GPT2_124M = {"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12}
QWEN2_5_0_5B = {
    "vocab_size": 151936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
}
Tensors = dict[str, NDArray[np.float32]]


def write_random_gpt2(folder: Path, shape: dict[str, int] = GPT2_124M, seed: int = 0) -> int:
    """Writes config.json and model.safetensors (float32); returns the bytes of the weights."""
    generator = np.random.default_rng(seed)
    width, tensors = shape["n_embd"], Tensors()

    def matrix(name: str, rows: int, columns: int) -> None:
        tensors[name] = _drawn(generator, rows, columns)

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
    config = {"bos_token_id": 0, "eos_token_id": 0, "architectures": ["GPT2LMHeadModel"]}
    return _save(folder, tensors, {**shape, **config, "model_type": "gpt2"})


def write_random_qwen2(folder: Path, shape: dict[str, int] = QWEN2_5_0_5B, seed: int = 0) -> int:
    """As `write_random_gpt2`; the head is the embedding, as in the small models of this family."""
    generator = np.random.default_rng(seed)
    width, tensors = shape["hidden_size"], Tensors()
    head_width = width // shape["num_attention_heads"]
    values = shape["num_key_value_heads"] * head_width

    def linear(name: str, inputs: int, outputs: int, *, bias: bool = False) -> None:
        tensors[f"{name}.weight"] = _drawn(generator, outputs, inputs)
        if bias:
            tensors[f"{name}.bias"] = np.zeros(outputs, np.float32)

    linear("model.embed_tokens", width, shape["vocab_size"])
    for layer in range(shape["num_hidden_layers"]):
        name = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{name}.{norm}.weight"] = np.ones(width, np.float32)
        linear(f"{name}.self_attn.q_proj", width, width, bias=True)
        linear(f"{name}.self_attn.k_proj", width, values, bias=True)
        linear(f"{name}.self_attn.v_proj", width, values, bias=True)
        linear(f"{name}.self_attn.o_proj", width, width)
        linear(f"{name}.mlp.gate_proj", width, shape["intermediate_size"])
        linear(f"{name}.mlp.up_proj", width, shape["intermediate_size"])
        linear(f"{name}.mlp.down_proj", shape["intermediate_size"], width)
    tensors["model.norm.weight"] = np.ones(width, np.float32)
    config = {
        "bos_token_id": 0,
        "eos_token_id": 0,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "architectures": ["Qwen2ForCausalLM"],
    }
    return _save(folder, tensors, {**shape, **config, "model_type": "qwen2"})


def _drawn(generator: np.random.Generator, rows: int, columns: int) -> NDArray[np.float32]:
    return generator.standard_normal((rows, columns), np.float32) * np.float32(0.02)


def _save(folder: Path, tensors: Tensors, config: dict[str, Any]) -> int:
    """Writes both files; the bytes of the tensors."""
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    save_config(folder, {**config, "tie_word_embeddings": True, "torch_dtype": "float32"})
    return sum(tensor.nbytes for tensor in tensors.values())


def save_config(folder: Path, config: dict[str, Any]) -> None:
    """Writes config.json."""
    (folder / "config.json").write_text(json.dumps(config))
