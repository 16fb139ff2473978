"""How each tensor of a model is made from the checkpoint's tensors and cut over model-parallel ranks.

One declaration serves the layers (which slice they hold), the loader (which bytes it reads) and the
resharding tools (which element goes where).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from mindbatch.parallel.topology import TensorSlice


class Cut(Enum):
    """Which dimension of a [outputs, inputs] matrix, or [outputs] vector, is divided over the ranks."""

    REPLICATED = "replicated"
    OUTPUTS = "outputs"
    INPUTS = "inputs"
    VOCABULARY = "vocabulary"  # outputs, padded to a multiple of the ranks


@dataclass(frozen=True)
class Part:
    """Some outputs of a tensor, taken from one checkpoint tensor.

    source: name in the checkpoint.
    outputs, inputs: size of the part before it is cut; inputs is None for a vector.
    first: where the part begins along the outputs of the source (fused checkpoints hold several).
    transposed: the checkpoint stores [inputs, outputs].
    unit: outputs that stay together when cut (a head).
    """

    source: str
    outputs: int
    inputs: int | None = None
    first: int = 0
    transposed: bool = False
    unit: int = 1

    def source_shape(self, total_outputs: int) -> tuple[int, ...]:
        """Shape that the checkpoint's tensor must have."""
        if self.inputs is None:
            return (total_outputs,)
        return (self.inputs, total_outputs) if self.transposed else (total_outputs, self.inputs)

    def output_bounds(self, cut: Cut, piece: TensorSlice) -> tuple[int, int]:
        """Half-open range of the part's outputs on this rank, from 0."""
        if cut is Cut.OUTPUTS:
            return piece.bounds(self.outputs, self.unit)
        if cut is Cut.VOCABULARY:
            share = -(-self.outputs // piece.size)
            return min(piece.rank * share, self.outputs), min((piece.rank + 1) * share, self.outputs)
        return 0, self.outputs

    def input_bounds(self, cut: Cut, piece: TensorSlice) -> tuple[int, int]:
        """Half-open range of the inputs on this rank; (0, 1) for a vector."""
        if self.inputs is None:
            return 0, 1
        return piece.bounds(self.inputs) if cut is Cut.INPUTS else (0, self.inputs)


class Layout(Enum):
    """How the layers keep a tensor."""

    PACKED = "packed"  # a linear layer's matrix, in the layout of the kernels
    PLAIN = "plain"  # as it is: vectors and small tables


@dataclass(frozen=True)
class TensorSpec:
    """One parameter of the native model: its name, the parts it is joined from, its cut and its layout."""

    name: str
    parts: tuple[Part, ...]
    cut: Cut = Cut.REPLICATED
    layout: Layout = Layout.PLAIN

    def local_outputs(self, piece: TensorSlice) -> int:
        """Outputs on this rank; a padded vocabulary counts its padding."""
        if self.cut is Cut.VOCABULARY:
            return -(-self.parts[0].outputs // piece.size)
        return sum(high - low for low, high in (part.output_bounds(self.cut, piece) for part in self.parts))

    def local_inputs(self, piece: TensorSlice) -> int | None:
        """Inputs on this rank, or None for a vector."""
        if self.parts[0].inputs is None:
            return None
        low, high = self.parts[0].input_bounds(self.cut, piece)
        return high - low


def source_shapes(specs: Iterable[TensorSpec]) -> Mapping[str, tuple[int, ...]]:
    """The shape of every checkpoint tensor that the specs read."""
    totals: dict[str, int] = {}
    parts: dict[str, Part] = {}
    for part in (part for spec in specs for part in spec.parts):
        totals[part.source] = max(totals.get(part.source, 0), part.first + part.outputs)
        parts[part.source] = part
    return {source: part.source_shape(totals[source]) for source, part in parts.items()}
