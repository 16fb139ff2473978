"""Effect of an adapter on one module: a low-rank addition, or a full weight in place of the model's."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from enum import Enum

import numpy as np

from mindbatch.checkpoint.formats.floats import FloatArray
from mindbatch.checkpoint.formats.open_file import OpenFiles
from mindbatch.checkpoint.lora.low_rank import LowRank, merged_weight
from mindbatch.checkpoint.lora.names import Role
from mindbatch.checkpoint.lora.stored_array import StoredArray, read_array


class ModuleKind(Enum):
    """Kind of a module: its inputs are vectors, or tokens; or the adapter has a full weight for it."""

    LINEAR = "linear"
    EMBEDDING = "embedding"
    WHOLE = "whole"


@dataclass(frozen=True)
class Whole:
    """A weight, of the shape that the model's tensor has, and a bias, in place of the model's."""

    weight: FloatArray
    bias: FloatArray | None = None


@dataclass(frozen=True)
class AdaptedModule:
    """A module of an adapter: what is known of it without its arrays, and how these are read.

    module: its name without PEFT's prefix. arrays: as they are stored. scaling: on the product; 0 for a whole
    weight. of_tokens: it is an embedding, whatever the kind.
    """

    module: str
    kind: ModuleKind
    arrays: Mapping[Role, StoredArray]
    scaling: float = 0.0
    of_tokens: bool = False

    @property
    def identity(self) -> list[str | float]:
        """Lists all that acts, as JSON can be: name, scaling, and the digests of the stored tensors."""
        arrays = sorted((role.value, array) for role, array in self.arrays.items())
        digests = [f"{role} {shard.digest}" for role, array in arrays for shard in array.shards]
        return [self.module, self.kind.value, self.scaling, *digests]

    @property
    def rank(self) -> int:
        """Rows of A; 0 for a whole weight, also where A was added to that."""
        return 0 if self.kind is ModuleKind.WHOLE else self.arrays[Role.A].shape[0]

    @property
    def inputs(self) -> int:
        """Columns of A: numbers, or tokens, that go in."""
        return self.arrays[Role.A].shape[1]

    @property
    def outputs(self) -> int:
        """Rows of B."""
        return self.arrays[Role.B].shape[0]

    @property
    def has_bias(self) -> bool:
        """True if a bias is added to the module's output, or its bias replaced."""
        return Role.BIAS in self.arrays

    @property
    def has_magnitude(self) -> bool:
        """True if the rows are normalised (DoRA)."""
        return Role.MAGNITUDE in self.arrays

    def low_rank(self, files: OpenFiles | None = None) -> LowRank:
        """The arrays of a module that is LINEAR or EMBEDDING. files: opened already, for many modules.

        CheckpointError when one has changed since the adapter was opened.
        """
        read = self._read(files)
        return LowRank(
            read[Role.A], read[Role.B], self.scaling, read.get(Role.BIAS), read.get(Role.MAGNITUDE)
        )

    def whole(self, files: OpenFiles | None = None) -> Whole:
        """The weight of a module that is WHOLE; otherwise as `low_rank`.

        PEFT saves the embedding below adapted matrices as well, and then takes it in place of the model's.
        """
        read = self._read(files)
        if Role.WEIGHT in read:
            return Whole(read[Role.WEIGHT], read.get(Role.BIAS))
        added = LowRank(read[Role.A], read[Role.B], self.scaling, None, read.get(Role.MAGNITUDE))
        weight = read[Role.BASE].T if self.of_tokens else read[Role.BASE]
        merged = merged_weight(weight, added)
        return Whole(np.ascontiguousarray(merged.T) if self.of_tokens else merged)

    def _read(self, files: OpenFiles | None) -> dict[Role, FloatArray]:
        with OpenFiles() if files is None else nullcontext(files) as opened:
            return {role: read_array(array, opened) for role, array in self.arrays.items()}
