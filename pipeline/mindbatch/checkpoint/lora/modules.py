"""What an adapter does to one module: a low-rank addition, or a whole weight in place of the model's."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from enum import Enum

from mindbatch.checkpoint.formats.floats import FloatArray
from mindbatch.checkpoint.formats.open_file import OpenFiles
from mindbatch.checkpoint.lora.names import Role
from mindbatch.checkpoint.lora.stored_array import StoredArray, read_array


class Kind(Enum):
    """Of a module: its inputs are vectors, or tokens; or the adapter has a whole weight for it."""

    LINEAR = "linear"
    EMBEDDING = "embedding"
    WHOLE = "whole"


@dataclass(frozen=True)
class LowRank:
    """The arrays of a low-rank addition, float32, the right way round whatever the model stores.

    y = W x becomes W x + scaling * (b (a x) + bias). With a magnitude (DoRA), row o of W + scaling * b a is
    multiplied by magnitude[o] / its norm, and the module's own bias stays as it is.

    a: [rank, inputs]; the inputs of an embedding are its vocabulary, x being one-hot. b: [outputs, rank].
    bias: [outputs]; scaled as well. magnitude: [outputs].
    """

    a: FloatArray
    b: FloatArray
    scaling: float
    bias: FloatArray | None = None
    magnitude: FloatArray | None = None


@dataclass(frozen=True)
class Whole:
    """A weight, of the shape that the model's tensor has, and a bias, in place of the model's."""

    weight: FloatArray
    bias: FloatArray | None = None


@dataclass(frozen=True)
class AdaptedModule:
    """A module of an adapter: what is known of it without its arrays, and how these are read.

    module: its name without PEFT's prefix. arrays: as they are stored. scaling: on the product; 0 for a whole
    weight.
    """

    module: str
    kind: Kind
    arrays: Mapping[Role, StoredArray]
    scaling: float = 0.0

    @property
    def identity(self) -> list[str | float]:
        """All that acts, as JSON can be: name, scaling, and the digests of the stored tensors."""
        arrays = sorted((role.value, array) for role, array in self.arrays.items())
        digests = [f"{role} {shard.digest}" for role, array in arrays for shard in array.shards]
        return [self.module, self.kind.value, self.scaling, *digests]

    @property
    def rank(self) -> int:
        """Rows of A; 0 for a whole weight."""
        return self.arrays[Role.A].shape[0] if Role.A in self.arrays else 0

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
        """Whether something is added to what the module gives, or its bias replaced."""
        return Role.BIAS in self.arrays

    @property
    def has_magnitude(self) -> bool:
        """Whether the rows are normed (DoRA)."""
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
        """The weight of a module that is WHOLE; otherwise as `low_rank`."""
        read = self._read(files)
        return Whole(read[Role.WEIGHT], read.get(Role.BIAS))

    def _read(self, files: OpenFiles | None) -> dict[Role, FloatArray]:
        with OpenFiles() if files is None else nullcontext(files) as opened:
            return {role: read_array(array, opened) for role, array in self.arrays.items()}
