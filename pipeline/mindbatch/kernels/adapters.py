"""Adapted parameters on one rank, and what kernels keep of adapters: slot 0 is the base."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mindbatch.kernels.arrays import Array, FloatArray, KernelParameter, aligned_zeros


class AdaptedParameter(NamedTuple):
    """Inputs of an adapted cell after the slots, and the shape it is made for."""

    stored: tuple[KernelParameter, ...]
    shape: AdaptedShape


class AdapterStore(ABC):
    """Memory for some adapters at a time; the graphs read in the next step what was written before it."""

    parameters: Mapping[str, AdaptedParameter]

    @abstractmethod
    def write(self, slot: int, parts: AdapterParts) -> None:
        """Writes an adapter to a slot, from 1 on, over what it held."""


class LowRankPart(NamedTuple):
    """For one part of a parameter y becomes y * scale + offset + x A^T B^T; y has the parameter's own bias.

    part: its number among the widths. a: [rank, inputs]. b: [outputs, rank]. scale, offset: [outputs].
    """

    part: int
    a: FloatArray
    b: FloatArray
    scale: FloatArray | None = None
    offset: FloatArray | None = None


class WholePart(NamedTuple):
    """A weight that replaces the parameter's own, [outputs, inputs] or [vocabulary, width]; `part` is 0."""

    part: int
    weight: FloatArray


@dataclass(frozen=True)
class AdaptedShape:
    """A parameter that adapters act on.

    inputs: numbers of x; of an embedding its tokens, x being one-hot.
    widths: outputs of its parts, one after another, each with a pair of matrices of its own.
    ranks: the largest rank of each part that any adapter has.
    has_whole: some adapter has a whole weight for it.
    """

    inputs: int
    widths: tuple[int, ...]
    ranks: tuple[int, ...]
    is_embedding: bool = False
    has_whole: bool = False

    @property
    def rank(self) -> int:
        """Numbers of x A^T: those of the parts one after another."""
        return max(1, sum(self.ranks))


WHOLE_WEIGHT = -1
Ranks = Mapping[str, Sequence[int]]
"""Ranks of one adapter, by parameter: the rank of each part, 0 for none, or WHOLE_WEIGHT."""
AdapterParts = Mapping[str, Sequence[LowRankPart | WholePart]]
"""Parts of one adapter: what it does, by parameter."""


class SlotArrays(AdapterStore):
    """For each parameter A, B, scale, offset; and whole weights with a mark, where any adapter has one.

    A: [slots + 1, rank, inputs], of an embedding [slots + 1, tokens, rank]. B: [slots + 1, outputs, rank].
    The parts of a parameter have their ranks one after another, so that B is zero beside its blocks.
    """

    def __init__(
        self,
        shapes: Mapping[str, AdaptedShape],
        slots: int,
        dtype: np.dtype[Any],
        as_parameter: Callable[[str, Array], Any],
        send: Callable[[Any, Array], None] | None = None,
    ) -> None:
        """as_parameter: `Kernels.as_parameter`. send: to a parameter that has memory of its own."""
        self._shapes, self._send = shapes, send
        self._arrays: dict[str, tuple[Array, ...]] = {}
        self.parameters = {}
        for name, shape in shapes.items():
            arrays = tuple(aligned_zeros((slots + 1, *size), dtype) for size in _sizes(shape))
            # A scale of 1: slots without an adapter leave the product as it is.
            arrays[2][:] = 1
            self._arrays[name] = arrays
            stored = tuple(
                as_parameter(f"adapters.{name}.{number}", array) for number, array in enumerate(arrays)
            )
            self.parameters[name] = AdaptedParameter(stored, shape)

    def write(self, slot: int, parts: AdapterParts) -> None:
        for name, arrays in self._arrays.items():
            for number, array in enumerate(arrays):
                # Clears the adapter that had the slot before: its scale to 1, all else to 0.
                array[slot] = number == 2
            for part in parts.get(name, ()):
                if isinstance(part, WholePart):
                    arrays[4][slot, : len(part.weight)], arrays[5][slot] = part.weight, 1
                else:
                    _put(self._shapes[name], slot, part, arrays)
            if self._send is not None:
                for parameter, array in zip(self.parameters[name].stored, arrays, strict=True):
                    self._send(parameter, array)


def _sizes(shape: AdaptedShape) -> list[tuple[int, ...]]:
    outputs, rank = sum(shape.widths), shape.rank
    a = (shape.inputs, rank) if shape.is_embedding else (rank, shape.inputs)
    sizes = [a, (outputs, rank), (outputs,), (outputs,)]
    if shape.has_whole:
        sizes += [(shape.inputs, outputs) if shape.is_embedding else (outputs, shape.inputs), (1,)]
    return sizes


def _put(shape: AdaptedShape, slot: int, part: LowRankPart, arrays: Sequence[Array]) -> None:
    start, first = sum(shape.widths[: part.part]), sum(shape.ranks[: part.part])
    rows, ranks = slice(start, start + len(part.b)), slice(first, first + len(part.a))
    if shape.is_embedding:
        arrays[0][slot, : part.a.shape[1], ranks] = part.a.T
    else:
        arrays[0][slot, ranks] = part.a
    arrays[1][slot, rows, ranks] = part.b
    for array, values in zip(arrays[2:4], (part.scale, part.offset), strict=True):
        if values is not None:
            array[slot, rows] = values
