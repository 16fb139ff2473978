"""Tensor specs: how each tensor is made from the checkpoint's tensors and sharded over ranks.

One declaration serves the layers (which slice they hold), the loader (which bytes it reads) and the
resharding tools (which element goes where).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from mindbatch.parallel.topology import TensorSlice

Range = tuple[int, int]  # half-open


class Sharding(Enum):
    """Dimension of a [outputs, inputs] matrix, or [outputs] vector, that is divided over the ranks."""

    REPLICATED = "replicated"
    OUTPUTS = "outputs"
    INPUTS = "inputs"
    VOCABULARY = "vocabulary"  # outputs, padded to a multiple of the ranks


@dataclass(frozen=True)
class Part:
    """Some outputs of a tensor, taken from one checkpoint tensor; sizes are those of the whole model."""

    source: str
    """Name of the tensor in the checkpoint."""
    outputs: int
    inputs: int | None = None
    """None for a vector."""
    first: int = 0
    """The part's first output in the source; fused checkpoints hold several parts in one tensor."""
    transposed: bool = False
    """True if the checkpoint stores [inputs, outputs]."""
    unit: int = 1
    """Outputs that stay on one rank together, as those of a head; of a matrix whose inputs are divided,
    inputs."""
    is_shared: bool = False
    """True if ranks share units where there are more ranks than units, as key/value heads."""
    group_size: int = 0
    stride: int = 0
    """Of a part that is interleaved with others: outputs that are contiguous, and the distance from the
    first of them to the first of the next group; 0 where all outputs are contiguous."""
    matrix: int | None = None
    """Index of the part's matrix in a source that is a stack of matrices [n, ...]."""
    is_depthwise: bool = False
    """True if the source has the weights of a depthwise convolution, [outputs, 1, inputs]."""

    def source_ranges(self, low: int, high: int) -> list[Range]:
        """The ranges of the source's outputs that hold the part's outputs low .. high - 1, in their order."""
        if not self.group_size:
            return [(self.first + low, self.first + high)]
        ranges = []
        while low < high:
            number, within = divmod(low, self.group_size)
            stop = min(high, low - within + self.group_size)
            start = self.first + number * self.stride + within
            ranges.append((start, start + stop - low))
            low = stop
        return ranges

    def source_shape(self, total_outputs: int) -> tuple[int, ...]:
        if self.inputs is None:
            return (total_outputs,)
        if self.is_depthwise:
            return (total_outputs, 1, self.inputs)
        return (self.inputs, total_outputs) if self.transposed else (total_outputs, self.inputs)

    def units(self, sharding: Sharding) -> int | None:
        """The number of units that ranks divide among them; None where nothing is divided evenly."""
        if sharding is Sharding.OUTPUTS:
            return self.outputs // self.unit
        return self.inputs // self.unit if sharding is Sharding.INPUTS and self.inputs else None

    def divides(self, sharding: Sharding, size: int) -> bool:
        units = self.units(sharding)
        if units is None or units % size == 0:
            return True
        return self.is_shared and sharding is Sharding.OUTPUTS and size % units == 0

    def region(self, outputs: Range, inputs: Range) -> tuple[Range, ...]:
        """The ranges in the order of the checkpoint's dimensions, after the matrix's index in a stack."""
        if self.inputs is None:
            return (outputs,)
        if self.is_depthwise:
            return (outputs, (0, 1), inputs)
        both = (inputs, outputs) if self.transposed else (outputs, inputs)
        return both if self.matrix is None else ((self.matrix, self.matrix + 1), *both)

    def output_bounds(self, sharding: Sharding, shard: TensorSlice) -> tuple[int, int]:
        """Half-open range of the part's outputs on this rank, from 0.

        Raises:
            ValueError: the part cannot be cut over so many ranks.
        """
        if sharding is Sharding.OUTPUTS:
            self._check(sharding, shard)
            return shard.bounds(self.outputs, self.unit)
        if sharding is Sharding.VOCABULARY:
            share = self.local_outputs(sharding, shard)
            return min(shard.rank * share, self.outputs), min((shard.rank + 1) * share, self.outputs)
        return 0, self.outputs

    def input_bounds(self, sharding: Sharding, shard: TensorSlice) -> tuple[int, int]:
        """Half-open range of the inputs on this rank; (0, 1) for a vector.

        Raises:
            ValueError: the part cannot be cut over so many ranks.
        """
        if self.inputs is None:
            return 0, 1
        self._check(sharding, shard)
        return shard.bounds(self.inputs, self.unit) if sharding is Sharding.INPUTS else (0, self.inputs)

    def local_outputs(self, sharding: Sharding, shard: TensorSlice) -> int:
        """Outputs on this rank; a padded vocabulary counts its padding."""
        if sharding is Sharding.VOCABULARY:
            return -(-self.outputs // shard.size)
        low, high = self.output_bounds(sharding, shard)
        return high - low

    def _check(self, sharding: Sharding, shard: TensorSlice) -> None:
        if not self.divides(sharding, shard.size):
            raise ValueError(
                f"{self.source}: {self.units(sharding)} units cannot be cut over {shard.size} ranks"
            )


class Layout(Enum):
    PACKED = "packed"  # a linear layer's matrix, in the layout of the kernels
    PLAIN = "plain"  # as it is: vectors and small tables
    FLOAT32 = "float32"  # the same, and in float32 whatever type the kernels compute in


@dataclass(frozen=True)
class TensorSpec:
    """One parameter of the native model, joined from parts."""

    name: str
    parts: tuple[Part, ...]
    sharding: Sharding = Sharding.REPLICATED
    layout: Layout = Layout.PLAIN
    matrices: int = 0
    """Number of equal matrices that the parts make, each packed by itself (experts); 0 for a single one."""
    split: int = 0
    """Splits each unit of the only part into two matrices, its first `split` outputs and the rest. They are
    kept as two `stacks`, the first of them transposed."""
    is_table: bool = False
    """True if rows are only looked up; adapters do not add to them."""
    segments: int = 1
    """Equal stretches of the inputs of a matrix that ranks divide among them: a product is summed by each,
    and then in a balanced tree, so that its bits are the same on 1, 2, .. `segments` ranks."""

    @property
    def stacks(self) -> tuple[str, str]:
        owner = self.name.removesuffix("weight")
        return f"{owner}absorb", f"{owner}expand"

    @property
    def is_linear(self) -> bool:
        """True if it is the matrix of one linear layer, to which adapters can add."""
        is_one = not self.matrices and not self.split
        return self.layout is Layout.PACKED and is_one and not self.is_table

    def local_outputs(self, shard: TensorSlice) -> int:
        """Outputs on this rank; a padded vocabulary counts its padding."""
        return sum(part.local_outputs(self.sharding, shard) for part in self.parts)

    def local_inputs(self, shard: TensorSlice) -> int | None:
        """Inputs on this rank, or None for a vector."""
        if self.parts[0].inputs is None:
            return None
        low, high = self.parts[0].input_bounds(self.sharding, shard)
        return high - low

    def local_segments(self, shard: TensorSlice) -> int:
        """Segments on this rank; one where ranks do not divide them."""
        return segments_of_rank(self.segments, shard.size)

    def numbers(self, shard: TensorSlice) -> int:
        return self.local_outputs(shard) * (self.local_inputs(shard) or 1)


MAX_SEGMENTS = 8


def segments(parts: Sequence[Part], sharding: Sharding) -> int:
    """`TensorSpec.segments` of parts: the largest power of two up to 8 that their units can be cut into."""
    units = [part.units(sharding) or 1 for part in parts]
    return math.gcd(MAX_SEGMENTS, *units) if sharding is Sharding.INPUTS else 1


def segments_of_rank(units: int, ranks: int) -> int:
    """Segments on each of the ranks that divide so many units; one where the ranks do not divide them."""
    count, rest = divmod(math.gcd(MAX_SEGMENTS, units), ranks)
    return 1 if rest else count


def fused(
    source: str, widths: Sequence[int], inputs: int, unit: int | Sequence[int] = 1, transposed: bool = False
) -> tuple[Part, ...]:
    """Parts that follow one another in one checkpoint tensor. unit: of all parts, or of each."""
    units = [unit] * len(widths) if isinstance(unit, int) else unit
    return tuple(
        Part(source, width, inputs, sum(widths[:index]), transposed, own)
        for index, (width, own) in enumerate(zip(widths, units, strict=True))
    )


def interleaved(
    source: str, group_sizes: Sequence[int], groups: int, inputs: int, unit: int
) -> tuple[Part, ...]:
    """Parts that are interleaved in one checkpoint tensor, as query, key and value of Megatron's heads.

    group_sizes: outputs of each part that are contiguous. groups: how often they repeat.
    """
    stride = sum(group_sizes)
    return tuple(
        Part(
            source, size * groups, inputs, sum(group_sizes[:index]), unit=unit, group_size=size, stride=stride
        )
        for index, size in enumerate(group_sizes)
    )


def source_shapes(specs: Iterable[TensorSpec]) -> Mapping[str, tuple[int, ...]]:
    totals: dict[str, int] = {}
    parts: dict[str, Part] = {}
    stacks: dict[str, tuple[int]] = {}
    for part in (part for spec in specs for part in spec.parts):
        end = part.source_ranges(0, part.outputs)[-1][1]
        totals[part.source] = max(totals.get(part.source, 0), end)
        parts[part.source] = part
        if part.matrix is not None:
            stacks[part.source] = (max(part.matrix + 1, *stacks.get(part.source, (0,))),)
    return {
        source: (*stacks.get(source, ()), *part.source_shape(totals[source]))
        for source, part in parts.items()
    }


def shard_specs(specs: Sequence[TensorSpec], shard: TensorSlice) -> list[TensorSpec]:
    """The specs of a rank's own file, whose tensors are the rank's slices.

    The parts of a fused tensor follow one another, or are interleaved, as in the full one; padding counts as
    outputs.

    Raises:
        ValueError: a part cannot be cut over so many ranks.
    """
    group_sizes: dict[str, dict[int, int]] = {}  # contiguous outputs of each part, by its first
    for spec in specs:
        for part in spec.parts:
            outputs = part.local_outputs(spec.sharding, shard)
            size = min(part.group_size or outputs, outputs)
            group_sizes.setdefault(part.source, {})[part.first] = size

    def of_rank(part: Part, sharding: Sharding) -> Part:
        left, right = part.input_bounds(sharding, shard)
        widths = group_sizes[part.source]
        return replace(
            part,
            outputs=part.local_outputs(sharding, shard),
            inputs=None if part.inputs is None else right - left,
            first=sum(width for first, width in widths.items() if first < part.first),
            group_size=widths[part.first] if part.group_size else 0,
            stride=sum(widths.values()) if part.group_size else 0,
        )

    return [
        replace(
            spec,
            parts=tuple(of_rank(part, spec.sharding) for part in spec.parts),
            sharding=Sharding.REPLICATED,
            segments=spec.local_segments(shard),
        )
        for spec in specs
    ]
