"""Ranks as shown by `mindbatch plan`: a page, and values of JSON."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mindbatch.checkpoint.placement.placements import LayoutRow, rank_totals
from mindbatch.checkpoint.placement.regions import Placement, Shard
from mindbatch.io.amounts import counted, ranges, shape_text, table
from mindbatch.io.screen_text import printable
from mindbatch.tasks.plan.layout import strategy_lines
from mindbatch.tasks.plan.ranks import RankPlan

_UNSAYABLE = "MindSpore's strategy files cannot say this layout: they know no padding, and one piece a rank"
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_TITLES = ["tensor", "shape", "cut", "ranks", "shape on a rank", "bytes on a rank", "bytes in all"]


def ranks_page(plan: RankPlan, paths: Sequence[Path]) -> str:
    """The tensors with their cuts, the sums by rank, and where the strategy files are."""
    files = strategy_lines(paths) if paths or _is_sayable(plan) else [_UNSAYABLE]
    return "\n\n".join(["\n".join(_head(plan)), layout_page(plan.rows), "\n".join(files)])


def _is_sayable(plan: RankPlan) -> bool:
    """True if a strategy could give each rank what it holds; padding is on the last ranks."""
    ends = [placed.shards[rank] for placed in plan.placements.values() for rank in placed.holders[::-1][:1]]
    return all(shard is None or (len(shard.segments) == 1 and not shard.padding) for shard in ends)


def _head(plan: RankPlan) -> Iterator[str]:
    parallel = plan.parallel
    yield f"layout of {plan.architecture.model_type}, elements {plan.dtype_from}"
    yield (
        f"data_parallel {parallel.data_parallel} x model_parallel {parallel.model_parallel} x pipeline_stage "
        f"{parallel.pipeline_stage}: {plan.num_ranks} {'rank' if plan.num_ranks == 1 else 'ranks'}"
    )
    if parallel.pipeline_stage > 1:
        for stage in plan.stages:
            first = stage.index * plan.ranks_of_stage
            ranks = ranges(range(first, first + plan.ranks_of_stage))
            yield f"stage {stage.index}: ranks {ranks}, layers {ranges(stage.layers)}"


def ranks_json(plan: RankPlan, paths: Sequence[Path]) -> dict[str, Any]:
    """Every tensor of every rank; ranks that hold the same of a tensor are listed together."""
    parallel, rows = plan.parallel, plan.rows
    return {
        "kind": "layout",
        "model_type": plan.architecture.model_type,
        "data_parallel": parallel.data_parallel,
        "model_parallel": parallel.model_parallel,
        "pipeline_stage": parallel.pipeline_stage,
        "ranks": plan.num_ranks,
        "dtype": plan.dtype_from,
        "strategy_files": [str(path) for path in paths],
        "rank_sums": [
            {"rank": rank, "stage": rank // plan.ranks_of_stage, "tensors": tensors, "bytes": nbytes}
            for rank, (tensors, nbytes) in enumerate(rank_totals(rows))
        ],
        "tensors": [_tensor_json(row, plan.placements[row.name], plan.dtypes[row.name]) for row in rows],
    }


def _tensor_json(row: LayoutRow, placement: Placement, dtype: str) -> dict[str, Any]:
    holders: dict[Shard, list[int]] = {}
    for rank in placement.holders:
        shard = placement.shards[rank]
        assert shard is not None
        holders.setdefault(shard, []).append(rank)
    return {
        "name": row.name,
        "dtype": dtype,
        "shape": [*row.shape],
        "bytes": row.nbytes,
        "cut": row.cut,
        "shares": [
            {
                "ranks": ranks,
                "shape": [*shard.shape],
                "bytes": row.rank_bytes[ranks[0]],
                "pieces": [{"local": piece.local, "whole": piece.whole} for piece in shard.segments],
                "padding": [*shard.padding],
            }
            for shard, ranks in holders.items()
        ],
    }


def layout_page(rows: Sequence[LayoutRow]) -> str:
    """The tensors, those of layers that are cut alike in one line, and the sums by rank.

    Layers of several stages share a line, too: each is on the ranks of its own stage.
    """
    if not rows:
        return "no tensors"
    alike: dict[tuple[object, ...], list[LayoutRow]] = {}
    for row in rows:
        local = tuple(shape for shape in row.local_shapes if shape is not None)
        key = (_family(row.name), row.shape, row.itemsize, row.cut, local)
        alike.setdefault(key, []).append(row)
    cells = [line for group in alike.values() for line in _lines(group)]
    return "\n".join([*table([_TITLES, *cells], right=(5, 6)), "", *_sums(rows)])


def _lines(group: Sequence[LayoutRow]) -> list[list[str]]:
    """A line for each shape that ranks have of a tensor: one, unless it is cut unevenly."""
    row = group[0]
    lines: list[list[str]] = []
    for shape, ranks in _ranks_by_shape(row).items():
        nbytes = row.rank_bytes[ranks[0]]
        numbers = [f"{nbytes:,}", f"{nbytes * len(ranks) * len(group):,}"]
        places = {rank for other in group for rank in _ranks_by_shape(other)[shape]}
        by_stage = ", by stage" if len(places) > len(ranks) else ""
        where = f"{ranges(sorted(places))}{by_stage}"
        lines.append([_names(group), shape_text(row.shape), row.cut, where, shape_text(shape), *numbers])
    return lines


def _ranks_by_shape(row: LayoutRow) -> dict[tuple[int, ...], list[int]]:
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for rank, shape in enumerate(row.local_shapes):
        if shape is not None:
            by_shape.setdefault(shape, []).append(rank)
    return by_shape


def _family(name: str) -> str:
    """The name without its number, when it has one: what the tensors of all layers have in common."""
    return _NUMBER.sub("[]", name) if len(_NUMBER.findall(name)) == 1 else name


def _names(group: Sequence[LayoutRow]) -> str:
    """The names of a group in one: model.layers.[0-3, 6].norm.weight."""
    if len(group) == 1:
        return printable(group[0].name)
    layers = ranges(sorted(int(number) for row in group for number in _NUMBER.findall(row.name)))
    return printable(_NUMBER.sub(f"[{layers}]", group[0].name))


def _sums(rows: Sequence[LayoutRow]) -> list[str]:
    totals = rank_totals(rows)
    alike: dict[tuple[int, int], list[int]] = {}
    for rank, total in enumerate(totals):
        alike.setdefault(total, []).append(rank)
    lines = [["ranks", "tensors", "bytes on a rank"]]
    lines += [[ranges(ranks), f"{count:,}", f"{nbytes:,}"] for (count, nbytes), ranks in alike.items()]
    stored, full = sum(nbytes for _, nbytes in totals), sum(row.nbytes for row in rows)
    return [
        *table(lines, right=(1, 2)),
        "",
        f"{len(rows):,} tensors of {full:,} bytes; {stored:,} bytes on {counted(len(totals), 'rank')}",
    ]
