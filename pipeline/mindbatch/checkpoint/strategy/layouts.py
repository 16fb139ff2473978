"""From placements to MindSpore's strategies, one a pipeline stage, where these can say the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mindbatch.checkpoint.faults import first_lines, shown
from mindbatch.checkpoint.placement.boxes import Shape
from mindbatch.checkpoint.placement.placement import Placement, Placements, Share, single_piece
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
            shares = _of_stage(placement, stage, stages)
            if not shares:
                continue
            fault = _inexpressible(placement.shape, shares)
            layout = None if fault else _layout(name, placement.shape, shares, model_parallel)
            if layout is not None and _says(layout, placement.shape, shares):
                layouts.append(layout)
            else:
                reason = fault or "the ranks hold their parts in an order that no device matrix tells"
                faults.setdefault(reason, {})[name] = None
        made.append(Strategy(tuple(layouts), (OperatorStrategy(_OPERATOR, stage),)))
    if faults:
        raise CheckpointError(_lines(faults))
    return made


def _of_stage(placement: Placement, stage: int, stages: int) -> list[Share]:
    """What the ranks of a stage hold: of all of them, or of none."""
    devices = len(placement.shares) // stages
    shares = placement.shares[stage * devices : (stage + 1) * devices]
    held = [share for share in shares if share is not None]
    assert not held or len(held) == devices, placement.name
    return held


def _inexpressible(shape: Shape, shares: Sequence[Share]) -> str | None:
    """What MindSpore has no words for."""
    pieces = max(len(share.pieces) for share in shares)
    if any(share.padding for share in shares):
        return f"shape {[*shape]} is padded with zeros to be cut evenly; a strategy knows no padding"
    if pieces > 1:
        return f"{pieces} pieces on each rank; a strategy gives a rank one piece"
    if len({share.shape for share in shares}) > 1:
        return f"shape {[*shape]} is cut unevenly; a strategy cuts evenly"
    if sum(whole != part for whole, part in zip(shape, shares[0].shape, strict=True)) > 1:
        return f"shape {[*shape]} is cut in several dimensions, which is not written here"
    return None


def _layout(name: str, shape: Shape, shares: Sequence[Share], model_parallel: int) -> TensorLayout | None:
    """The device matrix has the copies first; where neighbours hold the same part, their number is last."""
    devices, local = len(shares), shares[0].shape
    uncut = (UNCUT,) * max(1, len(shape))
    cut = next((index for index, size in enumerate(shape) if local[index] != size), None)
    if cut is None:
        return TensorLayout(name, (devices // model_parallel, model_parallel), uncut)
    parts = shape[cut] // local[cut] if local[cut] else 0
    alike = next((rank for rank, share in enumerate(shares) if share != shares[0]), devices)
    if not parts or devices % (parts * alike):
        return None
    matrix = (devices // (parts * alike), parts, *([alike] if alike > 1 else []))
    axis = len(matrix) - 2
    return TensorLayout(name, matrix, (*uncut[:cut], axis, *uncut[cut + 1 :]))


def _says(layout: TensorLayout, shape: Shape, shares: Sequence[Share]) -> bool:
    """Whether each rank holds by the layout what it holds by its share."""
    try:
        local = layout.local_shape(shape)
        wholes = (layout.slice_of(rank, shape) for rank in range(len(shares)))
        return all(
            single_piece(local, tuple((part.start, part.stop) for part in whole)) == share
            for whole, share in zip(wholes, shares, strict=True)
        )
    except CheckpointError:  # it does not divide
        return False


def _lines(faults: Mapping[str, Mapping[str, None]]) -> list[str]:
    lines = []
    for reason, names in faults.items():
        listed = ", ".join(first_lines([*names], shown, limit=_MAX_SHOWN, noun="tensors"))
        lines.append(f"{'tensors' if len(names) > 1 else 'tensor'} {listed}: {reason}")
    return lines
