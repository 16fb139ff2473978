"""Tiny models of every native type with weights from fixed seeds, and the logits that a CPU gave for them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mindbatch.checkpoint.formats.stored import TensorEntry
from mindbatch.models.architecture import Architecture
from mindbatch.models.registry import describe, tensor_specs
from mindbatch.models.tensor_spec import source_shapes
from mindbatch.parallel.topology import WHOLE

FloatArray = npt.NDArray[np.float32]

RECORDED = Path(__file__).parent / "recorded.npz"
"""By model type the logits [tokens, vocabulary] of `runs.logits`; makers/record_ascend_check.py writes it."""
_GROUPED: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
}
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "gemma": _GROUPED,
    "gpt2": {"vocab_size": 96, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "llama": _GROUPED,
    "minimind": _GROUPED,
    "mistral": _GROUPED | {"sliding_window": None},
    "qwen2": _GROUPED,
    "qwen3": _GROUPED | {"attention_bias": False},
}


def architecture(model_type: str) -> Architecture:
    """The sizes of the tiny model of a type."""
    return describe({"model_type": model_type, **CONFIGS[model_type]})


@lru_cache(maxsize=1)
def recorded() -> dict[str, FloatArray]:
    """What is in RECORDED."""
    with np.load(RECORDED) as arrays:
        return dict(arrays)


class RandomWeights:
    """A model's tensors, made from their names alone: the same on every machine. See `ModelWeights`."""

    def __init__(self, arch: Architecture) -> None:
        self.path = Path(f"tiny {arch.model_type}")
        self.shard, self.stages = WHOLE, 1
        self._shapes = source_shapes(tensor_specs(arch))
        self._centre = 0.0 if arch.model_type == "gemma" else 1.0  # of norms; Gemma's are 1 + weight

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._shapes)

    def file_name(self, name: str) -> str:
        return "model.safetensors"

    def info(self, name: str) -> TensorEntry:
        return TensorEntry(name, "F32", self._shapes[name])

    def floats(self, name: str, *, rows: slice | None = None, columns: slice | None = None) -> FloatArray:
        values = self._values(name, self._shapes[name])
        values = values if rows is None else values[rows]
        return values if columns is None else values[:, columns]

    def _values(self, name: str, shape: tuple[int, ...]) -> FloatArray:
        """Uniform: NumPy promises that a generator's bits stay the same, of its distributions it does not."""
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
        bits = np.random.PCG64(seed).random_raw(int(np.prod(shape))) >> np.uint64(40)
        uniform = bits.astype(np.float32) / np.float32(1 << 23) - np.float32(1)
        is_norm = len(shape) == 1 and name.endswith("weight")
        spread, centre = (0.3, self._centre) if is_norm else (0.3 if len(shape) == 1 else 0.25, 0.0)
        return (uniform * np.float32(spread) + np.float32(centre)).reshape(shape)
