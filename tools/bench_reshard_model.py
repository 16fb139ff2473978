"""The Llama checkpoint that bench_reshard.py cuts: random bfloat16 weights, as many bytes as asked for."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import checkout  # noqa: F401
from mindbatch.checkpoint.digests import write_digests
from mindbatch.checkpoint.file_layout import write_tensor_file
from mindbatch.checkpoint.partition import source_shapes
from mindbatch.checkpoint.safetensors_writer import safetensors_layout
from mindbatch.models.registry import describe, tensor_specs

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
SMALLER = {"hidden_size": 1024, "intermediate_size": 2816, "vocab_size": 16000}
PIECE = 1 << 22


def write_llama(folder: Path, nbytes: int) -> int:
    """Writes a folder with about so many bytes of weights; returns how many."""
    folder.mkdir()
    config = sized(nbytes)
    (folder / "config.json").write_text(json.dumps(config))
    shapes = source_shapes(tensor_specs(describe(config)))
    layout = safetensors_layout([(name, "BF16", shape) for name, shape in shapes.items()])
    write_tensor_file(folder / "model.safetensors", layout, lambda name: noise(2 * math.prod(shapes[name])))
    write_digests(folder)
    return layout.total_bytes


def sized(nbytes: int) -> dict[str, Any]:
    """The configuration with as many layers as fit."""
    config = dict(CONFIG) if nbytes >= 10**9 else {**CONFIG, **SMALLER}
    one, two = (total({**config, "num_hidden_layers": layers}) for layers in (1, 2))
    return {**config, "num_hidden_layers": max(1, 1 + round((nbytes - one) / (two - one)))}


def total(config: dict[str, Any]) -> int:
    """Bytes of all tensors."""
    return sum(2 * math.prod(shape) for shape in source_shapes(tensor_specs(describe(config))).values())


def noise(count: int) -> Iterator[bytes]:
    """Random bytes, which no file system can shorten."""
    piece = os.urandom(min(PIECE, count))
    for start in range(0, count, PIECE):
        yield piece[: min(PIECE, count - start)]
