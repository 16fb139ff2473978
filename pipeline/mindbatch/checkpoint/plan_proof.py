"""Proof of a reshard plan: every element of a target tensor comes from one source element, the right one.

It works on boxes with exact integers, so its cost does not depend on the sizes of the tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from mindbatch.checkpoint.boxes import (
    Box,
    box_shape,
    first_overlap,
    full_box,
    intersection,
    is_inside,
    moved,
    shown_box,
    uncovered,
    volume,
)
from mindbatch.checkpoint.placement import Piece, Placement, Share


class Copy(NamedTuple):
    """A box of a source rank's tensor that becomes a box, of the same sizes, of a target rank's tensor."""

    source_rank: int
    source: Box
    target: Box


def copy_faults(source: Placement, share: Share, copies: Sequence[Copy]) -> list[str]:
    """What is wrong with the copies that make one rank's share; nothing, when they are proved."""
    faults = [fault for copy in copies for fault in _faults_of(source, share, copy)]
    if faults:
        return faults
    targets = [copy.target for copy in copies]
    if (twice := first_overlap(targets)) is not None:
        return [f"{shown_box(twice)} of its shape {[*share.shape]} is written twice"]
    if sum(map(volume, targets)) == sum(volume(piece.local) for piece in share.pieces):
        return []
    return [f"{shown_box(box)} of the full tensor comes from nowhere" for box in _missing(share, targets)]


def _faults_of(source: Placement, share: Share, copy: Copy) -> Iterator[str]:
    """Whether a copy stays inside both tensors and takes every element to where it belongs."""
    line = f"copy of {shown_box(copy.source)} of source rank {copy.source_rank} to {shown_box(copy.target)}"
    origin = source.shares[copy.source_rank] if 0 <= copy.source_rank < len(source.shares) else None
    if origin is None:
        yield f"{line}: the source rank has no such tensor"
    elif not is_inside(copy.source, full_box(origin.shape)) or not is_inside(
        copy.target, full_box(share.shape)
    ):
        yield f"{line}: outside the shapes {[*origin.shape]} and {[*share.shape]}"
    elif box_shape(copy.source) != box_shape(copy.target):
        yield f"{line}: other sizes"
    else:
        matched = list(_matched(origin, share, copy))
        wrong = next((box for box, is_right in matched if not is_right), None)
        if wrong is not None:
            yield f"{line}: {shown_box(wrong)} of the full tensor is put where another element belongs"
        elif sum(volume(box) for box, _ in matched) != volume(copy.target):
            yield f"{line}: touches padding"


def _matched(origin: Share, share: Share, copy: Copy) -> Iterator[tuple[Box, bool]]:
    """The copy cut up by the pieces of both sides: boxes of the full tensor, and whether each gets to its place."""
    for held in origin.pieces:
        if (read := intersection(copy.source, held.local)) is None:
            continue
        written = moved(read, copy.source, copy.target)
        for wanted in share.pieces:
            if (box := intersection(written, wanted.local)) is None:
                continue
            taken = moved(moved(box, copy.target, copy.source), held.local, held.whole)
            yield taken, taken == moved(box, wanted.local, wanted.whole)


def _missing(share: Share, targets: Sequence[Box]) -> Iterator[Box]:
    for piece in share.pieces:
        for box in uncovered(piece.local, targets):
            yield moved(box, piece.local, piece.whole)
