"""From placements to MindSpore's strategies, one a pipeline stage, where these can say the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mindbatch.checkpoint.faults import first_lines, shown
from mindbatch.checkpoint.placement.placement import Placement, Placements, Shard, single_segment
from mindbatch.checkpoint.placement.regions import Shape
from mindbatch.checkpoint.strategy.strategy import OperatorStrategy, Strategy
from mindbatch.checkpoint.strategy.tensor_layout import UNCUT, TensorLayout
from mindbatch.errors import CheckpointError

_OPERATOR = "Layout-op0"  # MindSpore reads a file's stage from its first operator, so there must be one
_MAX_SHOWN = 3


def stage_strategies(found: Placements, model_parallel: int, stages: int) -> list[Strategy]:
    """The strategy of each stage, with the tensors that it holds, in order of the placements.

    A layout is made only if every rank's slice by it is the very box that the placement gives that rank.

    Raises:
        CheckpointError: the tensors that a strategy cannot describe, those of one reason in one line.
    """
    faults: dict[str, dict[str, None]] = {}
    made: list[Strategy] = []
    for stage in range(stages):
        layouts = []
        for name, placement in found.items():
            shards = _of_stage(placement, stage, stages)
            if not shards:
                continue
            fault = _inexpressible(placement.shape, shards)
            layout = None if fault else _layout(name, placement.shape, shards, model_parallel)
            if layout is not None and _says(layout, placement.shape, shards):
                layouts.append(layout)
            else:
                reason = fault or "the ranks hold their parts in an order that no device matrix tells"
                faults.setdefault(reason, {})[name] = None
        made.append(Strategy(tuple(layouts), (OperatorStrategy(_OPERATOR, stage),)))
    if faults:
        raise CheckpointError(_lines(faults))
    return made


def _of_stage(placement: Placement, stage: int, stages: int) -> list[Shard]:
    """What the ranks of a stage hold: of all of them, or of none."""
    devices = len(placement.shards) // stages
    shards = placement.shards[stage * devices : (stage + 1) * devices]
    held = [shard for shard in shards if shard is not None]
    assert not held or len(held) == devices, placement.name
    return held


def _inexpressible(shape: Shape, shards: Sequence[Shard]) -> str | None:
    """What MindSpore has no words for."""
    pieces = max(len(shard.segments) for shard in shards)
    if any(shard.padding for shard in shards):
        return f"shape {[*shape]} is padded with zeros to be cut evenly; a strategy knows no padding"
    if pieces > 1:
        return f"{pieces} pieces on each rank; a strategy gives a rank one piece"
    if len({shard.shape for shard in shards}) > 1:
        return f"shape {[*shape]} is cut unevenly; a strategy cuts evenly"
    if sum(whole != part for whole, part in zip(shape, shards[0].shape, strict=True)) > 1:
        return f"shape {[*shape]} is cut in several dimensions, which is not written here"
    return None


def _layout(name: str, shape: Shape, shards: Sequence[Shard], model_parallel: int) -> TensorLayout | None:
    """The device matrix has the copies first; where neighbours hold the same part, their number is last."""
    devices, local = len(shards), shards[0].shape
    uncut = (UNCUT,) * max(1, len(shape))
    cut = next((index for index, size in enumerate(shape) if local[index] != size), None)
    if cut is None:
        return TensorLayout(name, (devices // model_parallel, model_parallel), uncut)
    parts = shape[cut] // local[cut] if local[cut] else 0
    alike = next((rank for rank, shard in enumerate(shards) if shard != shards[0]), devices)
    if not parts or devices % (parts * alike):
        return None
    matrix = (devices // (parts * alike), parts, *([alike] if alike > 1 else []))
    axis = len(matrix) - 2
    return TensorLayout(name, matrix, (*uncut[:cut], axis, *uncut[cut + 1 :]))


def _says(layout: TensorLayout, shape: Shape, shards: Sequence[Shard]) -> bool:
    """Whether each rank holds by the layout what it holds by its shard."""
    try:
        local = layout.local_shape(shape)
        wholes = (layout.slice_of(rank, shape) for rank in range(len(shards)))
        return all(
            single_segment(local, tuple((part.start, part.stop) for part in whole)) == shard
            for whole, shard in zip(wholes, shards, strict=True)
        )
    except CheckpointError:  # it does not divide
        return False


def _lines(faults: Mapping[str, Mapping[str, None]]) -> list[str]:
    lines = []
    for reason, names in faults.items():
        listed = ", ".join(first_lines([*names], shown, limit=_MAX_SHOWN, noun="tensors"))
        lines.append(f"{'tensors' if len(names) > 1 else 'tensor'} {listed}: {reason}")
    return lines
