"""Shards the tensors of a model over data-parallel, model-parallel and pipeline ranks.

A rank is (stage * data_parallel + replica) * model_parallel + its index among its model-parallel neighbours,
which is how MindSpore counts devices.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import groupby

from mindbatch.architecture.stage_cut import cut, holds, is_tied, number_of_layers, stage_errors
from mindbatch.architecture.tensor_spec import Layout, Part, Sharding, TensorSpec, source_shapes
from mindbatch.checkpoint.placement.regions import (
    Placement,
    Placements,
    Region,
    Segment,
    Shard,
    joined_segments,
)
from mindbatch.io.errors import ConfigError
from mindbatch.parallel.topology import DeviceMap, Stage, TensorSlice


def placements(
    specs: Sequence[TensorSpec],
    model_parallel: int,
    pipeline_stage: int = 1,
    device_map: DeviceMap = None,
    *,
    keys: str = "",
) -> dict[str, Placement]:
    """Shards each tensor of a checkpoint; placements by name, in the order of the specs.

    device_map: see `stage_errors`.
    keys: prefix of the names of the two numbers in messages, such as "target.".

    Raises:
        ConfigError: the model cannot be split into so many slices or stages.
    """
    check_sizes(specs, model_parallel, pipeline_stage, device_map, keys=keys)
    stages, parts = stages_of(specs, cut(specs, pipeline_stage, device_map)), _parts_by_source(specs)
    ranks = [TensorSlice(rank, model_parallel) for rank in range(model_parallel)]
    shards = cache(lambda sharded: [_shard(sharded, rank) for rank in ranks])  # the layers are alike
    absent = [None] * model_parallel
    by_source: dict[str, Placement] = {}
    for source, shape in source_shapes(specs).items():
        layer_shard = shards(tuple((replace(part, source=""), sharding) for part, sharding in parts[source]))
        by_stage = [layer_shard if stage in stages[source] else absent for stage in range(pipeline_stage)]
        by_source[source] = Placement(source, shape, tuple(shard for stage in by_stage for shard in stage))
    return by_source


def allowed_model_parallel(specs: Iterable[TensorSpec]) -> list[int]:
    """Lists the numbers of model-parallel ranks that the model can be sharded over."""
    sharded = {(part, spec.sharding) for spec in specs for part in spec.parts}
    unit_counts = [
        units for part, sharding in sharded if (units := part.units(sharding)) and not part.is_shared
    ]
    sizes = range(1, min(unit_counts, default=1) + 1)
    return [size for size in sizes if all(part.divides(sharding, size) for part, sharding in sharded)]


def sums_alike(specs: Iterable[TensorSpec], size: int) -> bool:
    """True if sums over so many ranks have the bits of one process; see `TensorSpec.segments`."""
    divided = (spec for spec in specs if spec.sharding is Sharding.INPUTS and spec.layout is Layout.PACKED)
    return size == 1 or all(spec.segments % size == 0 for spec in divided)


def check_sizes(
    specs: Sequence[TensorSpec],
    model_parallel: int,
    pipeline_stage: int = 1,
    device_map: DeviceMap = None,
    *,
    keys: str = "",
) -> None:
    """Raises ConfigError with the number, what it does not divide, and the numbers that are allowed."""
    layers = number_of_layers(specs)
    errors = [*_slice_errors(specs, model_parallel), *stage_errors(layers, pipeline_stage, device_map)]
    if errors:
        raise ConfigError(keys + error for error in errors)


def _slice_errors(specs: Sequence[TensorSpec], size: int) -> Iterator[str]:
    """Yields sizes that the number of ranks does not divide, each once, with the first tensor that has it.

    Inputs are the outputs of another tensor, and are named where those divide.
    """
    undivided: dict[tuple[int | None, str], str] = {}
    for part, sharding in ((part, spec.sharding) for spec in specs for part in spec.parts):
        if size > 0 and not part.divides(sharding, size):
            undivided.setdefault((part.units(sharding), _units_of(part, sharding)), part.source)
    if undivided or size < 1:
        named = {of: source for of, source in undivided.items() if of[1] != "inputs"} or undivided
        sizes = [f"the {units} {kind} of {source}" for (units, kind), source in named.items()]
        reason = f"does not divide {', '.join(sizes)}" if sizes else "must be at least 1"
        allowed = ", ".join(map(str, allowed_model_parallel(specs)))
        yield f"model_parallel={size}: {reason}; allowed for this model: {allowed}"


def _units_of(part: Part, sharding: Sharding) -> str:
    if part.unit > 1:
        return "heads"
    return "inputs" if sharding is Sharding.INPUTS else "outputs"


ShardedParts = Sequence[tuple[Part, Sharding]]


def _parts_by_source(specs: Iterable[TensorSpec]) -> dict[str, ShardedParts]:
    """Lists the parts of every checkpoint tensor in order, each once."""
    sharded_parts: dict[str, dict[tuple[Part, Sharding], None]] = {}
    for spec in specs:
        for part in spec.parts:
            sharded_parts.setdefault(part.source, {})[part, spec.sharding] = None
    return {
        source: sorted(parts, key=lambda part_sharding: part_sharding[0].first)
        for source, parts in sharded_parts.items()
    }


def _shard(parts: ShardedParts, rank: TensorSlice) -> Shard:
    """Builds a rank's shard of a tensor: of a matrix, or of each of a stack."""
    if parts[0][0].matrix is None:
        return _shard_of_matrix(parts, rank)
    by_matrix = groupby(sorted(parts, key=_matrix), _matrix)
    shards = [_shard_of_matrix([*matrix_parts], rank) for _, matrix_parts in by_matrix]
    segments = [segment for shard in shards for segment in shard.segments]
    shape = (len(shards), *shards[0].shape[1:])
    return Shard(shape, joined_segments(segments))


def _matrix(sharded: tuple[Part, Sharding]) -> int:
    return sharded[0].matrix or 0


def _shard_of_matrix(parts: ShardedParts, rank: TensorSlice) -> Shard:
    """The parts' outputs in the order of the full tensor, each part divided by itself."""
    segments: list[Segment] = []
    padding: list[Region] = []
    [part, sharding], end = parts[0], 0
    left, right = part.input_bounds(sharding, rank)
    columns = (0, right - left)
    for low, high in sorted(
        outputs
        for other, sharding in parts
        for outputs in other.source_ranges(*other.output_bounds(sharding, rank))
    ):
        start, end = end, end + high - low
        if start < end:
            segments.append(
                Segment(part.region((start, end), columns), part.region((low, high), (left, right)))
            )
    filled, end = end, sum(part.local_outputs(sharding, rank) for part, sharding in parts)
    if filled < end:
        padding.append(part.region((filled, end), columns))
    shape = tuple(stop for _, stop in part.region((0, end), columns))
    return Shard(shape, joined_segments(segments), tuple(padding))


def stages_of(specs: Sequence[TensorSpec], stages: Sequence[Stage]) -> dict[str, set[int]]:
    """Finds the stages that hold each checkpoint tensor, by its name.

    Raises:
        ValueError: a spec with a name that neither a layer nor the ends of a decoder have.
    """
    tied = is_tied(specs)
    stages_by_source: dict[str, set[int]] = {}
    for spec in specs:
        holding = {stage.index for stage in stages if holds(stage, spec, tied=tied)}
        for part in spec.parts:
            stages_by_source.setdefault(part.source, set()).update(holding)
    return stages_by_source


def with_replicas(by_name: Placements, model_parallel: int, data_parallel: int) -> dict[str, Placement]:
    """Extends placements to `data_parallel` copies of a model with `model_parallel` ranks a stage.

    A rank is (stage * data_parallel + copy) * model_parallel + its index among its model-parallel
    neighbours: as MindSpore counts devices, of which each stage has a row, cut first by copies.
    """
    return {
        name: replace(
            placement,
            shards=tuple(
                shard
                for start in range(0, len(placement.shards), model_parallel)
                for shard in placement.shards[start : start + model_parallel] * data_parallel
            ),
        )
        for name, placement in by_name.items()
    }


def described_cut(placement: Placement) -> str:
    """Describes how a tensor is sharded: dimensions from 0, on how many ranks each part is, padding.

    As "dimension 0 in 4, each twice", "dimension 1 in 2, 3 pieces a rank" or "whole, 3 times".
    """
    sizes = [shard.shape for shard in placement.shards if shard]
    regions = max(map(len, placement.ranks), default=0)
    if len(set(sizes)) != 1:
        return "unevenly" if sizes else "nowhere"
    parts = [-(-size // local) if local else 1 for size, local in zip(placement.shape, sizes[0], strict=True)]
    cuts = [f"dimension {index} in {count}" for index, count in enumerate(parts) if count > 1]
    count = len(sizes) // math.prod(parts)
    times = "twice" if count == 2 else f"{count} times"
    copies = [f"each {times}" if cuts else times] if count > 1 else []
    padded = [
        f"padded to {whole}"
        for size, local, count in zip(placement.shape, sizes[0], parts, strict=True)
        if (whole := local * count) > size
    ]
    fused = [f"{regions} pieces a rank"] if regions > 1 else []
    return ", ".join([*(cuts or ["whole"]), *fused, *copies, *padded])
