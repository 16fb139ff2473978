"""Cost of a placement: for each tensor how it is sharded, and its bytes on each rank."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mindbatch.checkpoint.placement.regions import Placement, Placements, Shape


@dataclass(frozen=True)
class LayoutRow:
    """A tensor, its full shape, how it is cut in words, and what each rank stores of it, padding included."""

    name: str
    shape: Shape
    itemsize: int
    cut: str
    local_shapes: tuple[Shape | None, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.itemsize

    @property
    def rank_bytes(self) -> tuple[int, ...]:
        """Bytes on each rank, 0 where the tensor is not."""
        return tuple(
            0 if shape is None else math.prod(shape) * self.itemsize for shape in self.local_shapes
        )  # fmt: skip


def layout_rows(placements: Placements, itemsizes: Mapping[str, int]) -> list[LayoutRow]:
    """A row for each tensor. itemsizes: bytes of an element, by the tensor's name."""
    return [
        LayoutRow(
            name,
            placement.shape,
            itemsizes[name],
            described_cut(placement),
            tuple(shard.shape if shard else None for shard in placement.shards),
        )
        for name, placement in placements.items()
    ]


def rank_totals(rows: Iterable[LayoutRow]) -> list[tuple[int, int]]:
    """(tensors, bytes) of each rank."""
    totals: list[tuple[int, int]] = []
    for row in rows:
        totals = totals or [(0, 0)] * len(row.local_shapes)
        totals = [
            (tensors + (shape is not None), nbytes + more)
            for (tensors, nbytes), shape, more in zip(totals, row.local_shapes, row.rank_bytes, strict=True)
        ]
    return totals


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
    copies = _times(len(sizes) // math.prod(parts), "each " if cuts else "")
    padded = [
        f"padded to {whole}"
        for size, local, count in zip(placement.shape, sizes[0], parts, strict=True)
        if (whole := local * count) > size
    ]
    fused = [f"{regions} pieces a rank"] if regions > 1 else []
    return ", ".join([*(cuts or ["whole"]), *fused, *copies, *padded])


def _times(count: int, prefix: str) -> list[str]:
    if count < 2:
        return []
    return [f"{prefix}{'twice' if count == 2 else f'{count} times'}"]
