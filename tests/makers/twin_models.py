"""Types without a class in transformers: their twins in NumPy, as references of make_model_fixtures.py."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from model_folders import random_tensor, stored

from make_model_fixtures import Case, spread
from mindbatch.architecture.tensor_spec import source_shapes
from mindbatch.model_spec.registry import describe, tensor_specs
from twins import Twin


class TwinModel:
    """A twin with as much of a model's interface as `make_model_fixtures.greedy` uses."""

    def __init__(self, twin: Twin, vocab_size: int) -> None:
        self._twin = twin
        self.config = SimpleNamespace(vocab_size=vocab_size)

    def __call__(self, rows: torch.Tensor, *, use_cache: bool) -> SimpleNamespace:
        assert not use_cache
        logits = np.stack([self._twin.logits(row) for row in rows.tolist()])
        return SimpleNamespace(logits=torch.from_numpy(logits).float())


def twin_case(make: type[Twin], config: dict[str, Any], dtype: str, shards: int) -> Case:
    """A folder as its authors publish it."""
    arch = describe(config)
    shapes = source_shapes(tensor_specs(arch))
    tensors = {key: [[*shape], spread("", key, [*shape], arch.tied)] for key, shape in shapes.items()}
    description = {"config": config, "tensors": tensors, "dtype": dtype, "shards": shards}

    def load(folder: Path) -> Any:
        """Weights as float32 has them after they were stored."""
        arrays = {key: random_tensor(key, shape, width) for key, (shape, width) in tensors.items()}
        kept = {key: stored(array, dtype).astype(np.float32) for key, array in arrays.items()}
        return TwinModel(make(config, kept), arch.vocab_size)

    return Case(description, load)
