"""Where the elements of a tensor are: which boxes of it each rank holds, and at which place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mindbatch.checkpoint.placement.boxes import (
    Box,
    Shape,
    box_shape,
    first_overlap,
    full_box,
    is_inside,
    merged,
    shown_box,
    uncovered,
    volume,
)


class Piece(NamedTuple):
    """A box of a rank's tensor, and the box of the full tensor that it holds; both have the same sizes."""

    local: Box
    whole: Box


@dataclass(frozen=True)
class Share:
    """What a rank holds of a tensor.

    shape: of the rank's tensor. padding: boxes of it that are zero and in no full tensor, as the end of a
    vocabulary that does not divide; pieces and padding together are all of it.
    """

    shape: Shape
    pieces: tuple[Piece, ...]
    padding: tuple[Box, ...] = ()


@dataclass(frozen=True)
class Placement:
    """A tensor of `shape` and the share of it that each rank holds, None where a rank has not got it."""

    name: str
    shape: Shape
    shares: tuple[Share | None, ...]

    @property
    def ranks(self) -> tuple[tuple[Piece, ...], ...]:
        """The pieces of each rank."""
        return tuple(share.pieces if share else () for share in self.shares)

    @property
    def holders(self) -> tuple[int, ...]:
        """The ranks that have the tensor."""
        return tuple(rank for rank, share in enumerate(self.shares) if share is not None)

    @property
    def geometry(self) -> tuple[Shape, tuple[Share | None, ...]]:
        """All but the name: what placements of many layers have in common."""
        return self.shape, self.shares

    def local_shape(self, rank: int) -> Shape | None:
        """The shape of the rank's tensor, None where it has not got it."""
        share = self.shares[rank]
        return share.shape if share else None


Placements = Mapping[str, Placement]


def joined_pieces(pieces: list[Piece]) -> tuple[Piece, ...]:
    """The pieces in order of the full tensor, as few as may be."""
    return tuple(Piece(local, whole) for local, whole in merged(pieces))


def single_piece(shape: Shape, whole: Box) -> Share:
    """The share of a rank that holds one box and nothing else."""
    return Share(shape, (Piece(full_box(shape), whole),) if volume(whole) else ())


def whole_placements(shapes: Mapping[str, Shape]) -> dict[str, Placement]:
    """All tensors on one rank, as in a full checkpoint."""
    return {
        name: Placement(name, shape, (single_piece(shape, full_box(shape)),))
        for name, shape in shapes.items()
    }


def placement_faults(placement: Placement) -> list[str]:
    """Whether the shares can be true and lose nothing: each fault names the box."""
    faults: list[str] = []
    for rank, share in enumerate(placement.shares):
        if share is not None:
            faults += [f"rank {rank}: {fault}" for fault in _share_faults(share, placement.shape)]
    pieces = [piece.whole for rank in placement.ranks for piece in rank]
    if not faults:
        lost = uncovered(full_box(placement.shape), pieces)
        faults += [f"{shown_box(box)} of shape {[*placement.shape]} is on no rank" for box in lost]
    return faults


def _share_faults(share: Share, shape: Shape) -> list[str]:
    faults: list[str] = []
    for local, whole in share.pieces:
        if not is_inside(local, full_box(share.shape)):
            faults.append(f"{shown_box(local)} is outside its shape {[*share.shape]}")
        if not is_inside(whole, full_box(shape)):
            faults.append(f"{shown_box(whole)} is outside the full shape {[*shape]}")
        if box_shape(local) != box_shape(whole):
            faults.append(f"{shown_box(local)} cannot hold {shown_box(whole)}, which has other sizes")
    faults += [
        f"padding {shown_box(box)} is outside its shape {[*share.shape]}"
        for box in share.padding
        if not is_inside(box, full_box(share.shape))
    ]
    return faults or _tiling_faults(share)


def _tiling_faults(share: Share) -> list[str]:
    """Whether pieces and padding are the rank's tensor, each element once."""
    boxes = [*(piece.local for piece in share.pieces), *share.padding]
    if (twice := first_overlap(boxes)) is not None:
        return [f"{shown_box(twice)} of its shape {[*share.shape]} is filled twice"]
    if sum(map(volume, boxes)) == volume(full_box(share.shape)):
        return []
    empty = uncovered(full_box(share.shape), boxes)
    return [f"{shown_box(box)} of its shape {[*share.shape]} is filled by nothing" for box in empty]
