"""A model without its weights: zeros of the right shapes, for graphs that are compiled and never compute."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mindbatch.architecture.architecture import Architecture
from mindbatch.architecture.stage_cut import layer_of
from mindbatch.architecture.tensor_spec import TensorSpec, shard_specs, source_shapes
from mindbatch.backends.adapter_weights import with_head
from mindbatch.checkpoint.formats.stored import StoredTensor
from mindbatch.model_spec.registry import tensor_specs
from mindbatch.parallel.topology import WHOLE, TensorSlice


@dataclass(frozen=True)
class NoWeights:
    """Stands for an opened folder (`StoredWeights`), of the whole model or of one rank."""

    shapes: Mapping[str, tuple[int, ...]]
    shard: TensorSlice = WHOLE
    path: Path = Path("no weights")
    stages: int = 1

    @classmethod
    def of(cls, arch: Architecture, shard: TensorSlice = WHOLE) -> NoWeights:
        specs = tensor_specs(arch)
        return cls(source_shapes(specs if shard.size == 1 else shard_specs(specs, shard)), shard)

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.shapes,)

    def file_name(self, name: str) -> str:
        """Returns no name: there is no file."""
        return str(self.path)

    def info(self, name: str) -> StoredTensor:
        """The shape that the model wants; float32."""
        return StoredTensor(name, "F32", self.shapes[name], ())

    def floats(
        self, name: str, *, rows: slice | None = None, columns: slice | None = None, is_widened: bool = True
    ) -> npt.NDArray[np.float32]:
        shape = self.shapes[name]
        if columns is not None and len(shape) > 2:
            shape = (math.prod(shape[:-1]), shape[-1])  # a stack, as a matrix
        if rows is not None:
            shape = (len(range(*rows.indices(shape[0]))), *shape[1:])
        if columns is not None:
            shape = (shape[0], len(range(*columns.indices(shape[1]))))
        return np.zeros(shape, np.float32)


def sources_of_layers(
    whole: Sequence[TensorSpec], sample: Sequence[TensorSpec], layers: Sequence[int]
) -> dict[str, str]:
    """The names in a sample of the tensors of its layers, and of the ends, by those in the whole model.

    whole, sample: of the models. layers: those of the whole model that the sample has.
    """
    own = [spec for spec in with_head(whole) if layer_of(spec) in (None, *layers)]
    few = with_head(sample)
    return {
        part.source: other.source
        for spec, renamed in zip(own, few, strict=True)
        for part, other in zip(spec.parts, renamed.parts, strict=True)
    }
