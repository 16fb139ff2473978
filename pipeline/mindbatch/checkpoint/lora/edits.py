"""Edits that a merge makes to a region of a stored tensor: all that a worker must know of it."""

from __future__ import annotations

from dataclasses import dataclass

from mindbatch.checkpoint.lora.base_weight import BaseWeight
from mindbatch.checkpoint.lora.stored_array import StoredArray
from mindbatch.checkpoint.placement.regions import Region


@dataclass(frozen=True, slots=True)
class Addition:
    """A region of scaling * B @ A that is added to a region of a stored tensor.

    place: in the stored tensor, counted in its view. product: the region of [outputs, inputs].
    inputs_first: rows of the tensor are inputs there, not outputs. magnitude, base: for DoRA, of whose norms
    the outputs get this magnitude.
    """

    a: StoredArray
    b: StoredArray
    scaling: float
    place: Region
    product: Region
    inputs_first: bool = False
    magnitude: StoredArray | None = None
    base: BaseWeight | None = None

    @property
    def paths(self) -> set[str]:
        """The files of its arrays."""
        magnitude = self.magnitude.paths if self.magnitude else set()
        return self.a.paths | self.b.paths | magnitude

    @property
    def along(self) -> tuple[int, int]:
        """The rows of the place, as the product counts them."""
        return self.product[1 if self.inputs_first else 0]

    @property
    def across(self) -> tuple[int, int]:
        """The columns of the place, as the product counts them."""
        return self.product[0 if self.inputs_first else 1]


@dataclass(frozen=True, slots=True)
class BiasAddition:
    """Some of scaling * a vector that is added to a region of a stored vector."""

    array: StoredArray
    scaling: float
    place: Region
    part: tuple[int, int]

    @property
    def paths(self) -> set[str]:
        """The files of its array."""
        return self.array.paths


@dataclass(frozen=True, slots=True)
class Replacement:
    """A region of a saved array in place of a region of a stored tensor, transposed where that is so."""

    array: StoredArray
    place: Region
    part: Region
    transposed: bool = False

    @property
    def paths(self) -> set[str]:
        """The files of its array."""
        return self.array.paths


Edit = Addition | BiasAddition | Replacement
