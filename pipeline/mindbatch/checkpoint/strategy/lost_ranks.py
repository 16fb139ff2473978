"""Whether tensors that lie there as one rank are whole, or what is left of a checkpoint of several ranks."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from mindbatch.checkpoint.faults import shown
from mindbatch.checkpoint.placement.regions import Shape
from mindbatch.checkpoint.strategy.placements import parts_of
from mindbatch.checkpoint.strategy.strategy import Strategy
from mindbatch.errors import CheckpointError


def part_fault(strategy: Strategy, shapes: Mapping[str, Shape]) -> str | None:
    """Why tensors of these shapes are one rank's parts by the strategy; None where nothing shows it.

    What the strategy cannot cut is not whole. Else sizes tell, for a model has few: those that are cut are
    found again in dimensions that are not, such as the hidden size. Where that holds of more sizes with all
    parts put together than of sizes as they are, these are parts.
    """
    cuts: dict[str, Shape] = {}
    for layout in strategy.layouts:
        if layout.name in shapes:
            with suppress(CheckpointError):  # a layout for other dimensions says nothing of this tensor
                cuts[layout.name] = parts_of(layout, len(shapes[layout.name]))
    sizes = [
        (name, size, count)
        for name, parts in cuts.items()
        for size, count in zip(shapes[name], parts, strict=True)
    ]
    uncut = {size for _, size, count in sizes if count == 1}
    cut = [(name, size, count) for name, size, count in sizes if count > 1]
    for name, size, count in cut:
        if size % count:
            what = f"{size} does not divide by the {count} of its strategy"
            return f"tensor {shown(name)} {[*shapes[name]]}: {what}"
    as_parts = [each for each in cut if each[1] * each[2] in uncut and each[1] not in uncut]
    as_they_are = [each for each in cut if each[1] in uncut and each[1] * each[2] not in uncut]
    if len(as_parts) <= len(as_they_are):
        return None
    name, size, count = as_parts[0]
    return f"tensor {shown(name)} {[*shapes[name]]}: {size} of {size * count}, as its strategy says"
