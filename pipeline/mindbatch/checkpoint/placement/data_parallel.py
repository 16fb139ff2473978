"""Copies of a cut model: data-parallel ranks hold what the first copy holds."""

from __future__ import annotations

from dataclasses import replace

from mindbatch.checkpoint.placement.placement import Placement, Placements


def with_copies(found: Placements, model_parallel: int, data_parallel: int) -> dict[str, Placement]:
    """The placements of `data_parallel` copies of a model that is cut over `model_parallel` ranks a stage.

    A rank is (stage * data_parallel + copy) * model_parallel + its place among its model-parallel
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
        for name, placement in found.items()
    }
