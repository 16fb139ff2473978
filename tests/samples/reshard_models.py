"""Small model folders to reshard: every way of cutting that there is, with weights that are all different."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mindbatch.architecture.tensor_spec import source_shapes
from mindbatch.checkpoint.folders.digests import record_digests
from mindbatch.checkpoint.formats.ckpt_file import ckpt_layout
from mindbatch.checkpoint.formats.open_file import open_tensor_file
from mindbatch.checkpoint.formats.safetensors_file import safetensors_layout
from mindbatch.checkpoint.formats.stored import DTYPES
from mindbatch.model_spec.registry import describe, tensor_specs
from tensor_files import write_tensor_file
from verified_sources import open_verified

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 67,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "tied": {**LLAMA, "tie_word_embeddings": True},
    "qwen2": {**LLAMA, "model_type": "qwen2", "vocab_size": 64},
    "gpt2": {
        "model_type": "gpt2",
        "vocab_size": 61,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 8,
        "n_positions": 16,
    },
    "pangu_alpha": {
        "model_type": "gpt_pangu",
        "vocab_size": 61,
        "hidden_size": 32,
        "num_layers": 3,
        "num_heads": 8,
        "max_position_embeddings": 16,
    },
    "chatglm": {
        "model_type": "chatglm",
        "padded_vocab_size": 61,
        "hidden_size": 32,
        "ffn_hidden_size": 48,
        "num_layers": 3,
        "num_attention_heads": 8,
        "kv_channels": 4,
        "multi_query_attention": True,
        "multi_query_group_num": 4,
        "seq_length": 64,
        "add_qkv_bias": True,
    },
    "chatglm_6b": {
        "model_type": "chatglm",
        "position_encoding_2d": True,
        "vocab_size": 61,
        "bos_token_id": 60,
        "gmask_token_id": 59,
        "mask_token_id": 58,
        "hidden_size": 32,
        "inner_hidden_size": 48,
        "num_layers": 2,
        "num_attention_heads": 8,
        "tie_word_embeddings": False,
    },
}
"""Odd vocabularies, fewer key/value heads than ranks, biases, a fused and transposed matrix, fused pairs."""

Tensors = Mapping[str, NDArray[Any]]


def tensors_of(config: Mapping[str, Any], seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Random weights of a model."""
    chance = np.random.default_rng(seed)
    shapes = source_shapes_of(config)
    return {name: chance.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def source_shapes_of(config: Mapping[str, Any]) -> Mapping[str, tuple[int, ...]]:
    """The shapes of a model's tensors."""
    return source_shapes(tensor_specs(describe(config, to_be_run=False)))


def stored(array: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    """The array as a file of this dtype keeps it; bfloat16 as its bits, cut off."""
    if dtype == "BF16":
        return (array.view(np.uint32) >> 16).astype(np.uint16)
    return array.astype({"F16": np.float16, "F32": np.float32}[dtype])


def write_tensors(path: Path, tensors: Tensors, dtype: str) -> None:
    """A .safetensors or .ckpt file."""
    layout_of = ckpt_layout if path.suffix == ".ckpt" else safetensors_layout
    layout = layout_of([(name, dtype, array.shape) for name, array in tensors.items()])
    write_tensor_file(path, layout, lambda name: [np.ascontiguousarray(tensors[name]).data.cast("B")])


def write_model(folder: Path, config: Mapping[str, Any], dtype: str = "F32", *, digests: bool = True) -> Path:
    """A Hugging Face folder with random weights."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**config, "torch_dtype": "float32"}))
    (folder / "generation_config.json").write_text("{}")
    arrays = {name: stored(array, dtype) for name, array in tensors_of(config).items()}
    write_tensors(folder / "model.safetensors", arrays, dtype)
    if digests:
        record_digests(folder)
    return folder


def contents(path: Path) -> list[dict[str, tuple[str, tuple[int, ...], bytes]]]:
    """By rank and name: dtype, shape and bytes of every tensor."""
    with open_verified(path) as source:
        found = []
        for rank in source.ranks:
            held = {}
            for name, info in rank.tensors.items():
                data = bytearray(math.prod(info.shape) * DTYPES[info.dtype])
                rank.read_into(name, 0, memoryview(data))
                held[name] = (info.dtype, info.shape, bytes(data))
            found.append(held)
        return found


def flip_a_bit(path: Path, name: str, place: int = 0) -> None:
    """Of a byte of a tensor in a file; a place below 0 is counted from its end."""
    with open_tensor_file(path) as file:
        [extent] = file.tensors[name].extents
    data = bytearray(path.read_bytes())
    data[extent.offset + place % extent.nbytes] ^= 1
    path.write_bytes(data)
