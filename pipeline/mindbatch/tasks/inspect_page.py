"""Makes the pages of `mindbatch inspect`, and their content as JSON."""

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from mindbatch.checkpoint.folders.tensor_set import ITERATION, RANKS, Source
from mindbatch.checkpoint.strategy.strategy import Strategy, TensorLayout
from mindbatch.io.amounts import ranges, shape_text, table
from mindbatch.io.screen_text import printable

_DIGEST_SHOWN = 12
_MAX_RANKS_SHOWN = 16
_TITLES = {
    "huggingface": "Hugging Face folder",
    "unified": "MindSpore's unified safetensors",
    "file": "one checkpoint file",
    "ranks": "rank folders",
    "iteration": "MindFormers' Checkpoint 2.0",
}


RankContent = dict[str, Any]
"""Tensors and texts of a rank that match the pattern, in plain JSON types."""


def source_page(
    source: Source,
    ranks: Sequence[RankContent],
    verdict: Sequence[str],
    limit: int,
    is_compared: bool,
    pattern: str | None,
    quantised: str | None,
) -> str:
    """Makes the page of a checkpoint: verdict, files, tensors, sums by dtype, and checksums.

    verdict: lines on how the model would run, or why it would not.
    pattern: pattern of the names that are shown; None shows all.
    quantised: description of quantised matrices; None for floats.
    """
    kinds = sorted({file.kind for tensors in source.ranks for file in tensors.files.values()})
    head = [f"{printable(str(source.path))}: {_TITLES[source.kind]}, {' and '.join(kinds)}"]
    number = "file" if source.kind == ITERATION else "rank"  # of an iteration are files, by whichever rank
    if source.kind in (RANKS, ITERATION):
        head += _rank_lines(ranks, number)
    if quantised is not None:
        head += [f"quantised: {quantised}"]
    blocks = [
        [*map(printable, verdict)],
        head,
        _tensor_lines(ranks, limit, pattern, f"{number}s"),
        _sums(ranks),
        _texts(ranks),
        _witnesses(ranks, is_compared),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _rank_lines(ranks: Sequence[RankContent], number: str) -> list[str]:
    """Makes a line for each rank, or for each file that is no rank's."""
    rows = [[number, "tensors", "bytes", "file"]]
    for rank in ranks[:_MAX_RANKS_SHOWN]:
        path = Path(rank["path"])
        file = printable(f"{path.parent.name}/{path.name}")
        rows.append([str(rank["rank"]), str(rank["count"]), f"{rank['bytes']:,}", file])
    more = len(ranks) - _MAX_RANKS_SHOWN
    return [*table(rows, right=(0, 1, 2)), *([_more(more, number)] if more > 0 else [])]


def _more(count: int, noun: str) -> str:
    return f"{count} more {noun}{'' if count == 1 else 's'}"


def _tensor_lines(ranks: Sequence[RankContent], limit: int, pattern: str | None, numbers: str) -> list[str]:
    """Makes a line for each tensor, with the ranks that hold it alike."""
    alike: dict[tuple[object, ...], list[int]] = {}
    tensors: dict[tuple[object, ...], Mapping[str, Any]] = {}
    for rank in ranks:
        for tensor in rank["tensors"]:
            key = (tensor["name"], tensor["dtype"], *tensor["shape"])
            tensors.setdefault(key, tensor)
            alike.setdefault(key, []).append(rank["rank"])
    if not alike:
        return ["no tensors" + (f" match filter={printable(pattern)}" if pattern else "")]
    several = len(ranks) > 1
    shown = []
    for key, tensor in islice(tensors.items(), limit):
        if several:
            last = "all" if len(alike[key]) == len(ranks) else ranges(alike[key])
        else:
            last = (tensor["sha256"] or "")[:_DIGEST_SHOWN]
        size, shape = f"{tensor['bytes']:,}", shape_text(tensor["shape"])
        shown.append([printable(tensor["name"]), tensor["dtype"], shape, size, last])
    titles = ["tensor", "dtype", "shape", "bytes", numbers if several else "sha256"]
    if not several and not any(cells[-1] for cells in shown):
        titles, shown = titles[:-1], [cells[:-1] for cells in shown]
    lines = table([titles, *shown], right=(3,)) if shown else []
    more = len(alike) - len(shown)
    return [*lines, *([f"{_more(more, 'tensor')}; limit=N shows more of them"] if more else [])]


def _sums(ranks: Sequence[RankContent]) -> list[str]:
    sums: dict[str, list[int]] = {}
    for tensor in (tensor for rank in ranks for tensor in rank["tensors"]):
        count = sums.setdefault(tensor["dtype"], [0, 0, 0])
        for index, value in enumerate((1, math.prod(tensor["shape"]), tensor["bytes"])):
            count[index] += value
    if not sums:
        return []
    total = [sum(column) for column in zip(*sums.values(), strict=True)]
    rows = [["dtype", "tensors", "elements", "bytes"]]
    rows += [[name, *(f"{value:,}" for value in values)] for name, values in [*sums.items(), ("all", total)]]
    return table(rows, right=(1, 2, 3))


def _texts(ranks: Sequence[RankContent]) -> list[str]:
    texts = {name: text for rank in reversed(ranks) for name, text in rank["texts"].items()}
    return [f"{printable(name)} = {printable(text)}" for name, text in texts.items()]


def _witnesses(ranks: Sequence[RankContent], is_compared: bool) -> list[str]:
    """Makes a line for each kind of checksum, with the ranks that have it, and if it was compared."""
    kinds: dict[str | None, list[int]] = {}
    for rank in ranks:
        kinds.setdefault(rank["witness"], []).append(rank["rank"])
    comparison = "was compared" if is_compared else "digests=true compares every tensor with it"
    return [
        (f"{'ranks' if len(numbers) > 1 else 'rank'} {ranges(numbers)}: " if len(kinds) > 1 else "")
        + (f"{kind}: {comparison}" if kind else "no digests: nothing here tells of a changed bit in a tensor")
        for kind, numbers in kinds.items()
    ]


def strategy_page(path: str, strategy: Strategy, layouts: Sequence[TensorLayout], limit: int) -> str:
    """Makes the page of a strategy file: its ranks, and how each parameter is sharded."""
    stages = ", ".join(map(str, strategy.stages)) or "none"
    head = [
        f"{printable(path)}: parallel strategy",
        f"stages {stages}; {strategy.num_devices} devices each; {strategy.num_ranks} ranks in all",
    ]
    rows = [["parameter", "stage", "device matrix", "tensor map", "cut into", "optimizer shard"]]
    rows += [_layout_cells(strategy, layout) for layout in layouts[:limit]]
    lines = table(rows, right=(1,)) if len(rows) > 1 else ["no parameters"]
    if (more := len(layouts) - limit) > 0:
        lines.append(f"{_more(more, 'parameter')}; limit=N shows more of them")
    return "\n".join([*head, "", *lines])


def _layout_cells(strategy: Strategy, layout: TensorLayout) -> list[str]:
    return [
        printable(layout.name),
        str(strategy.stage_of(layout)),
        shape_text(layout.device_matrix),
        shape_text(axes if isinstance(axes, int) else shape_text(axes) for axes in layout.tensor_map),
        "x".join(map(str, layout.parts)) or "-",
        str(layout.opt_shard_size) if layout.opt_shard_step and layout.opt_shard_size else "-",
    ]


def strategy_json(
    path: str, strategy: Strategy, layouts: Sequence[TensorLayout], limit: int
) -> dict[str, Any]:
    return {
        "path": path,
        "kind": "strategy",
        "stages": [*strategy.stages],
        "devices_per_stage": strategy.num_devices,
        "ranks": strategy.num_ranks,
        "count": len(layouts),
        "parameters": [_layout_json(strategy, layout) for layout in layouts[:limit]],
    }


def _layout_json(strategy: Strategy, layout: TensorLayout) -> dict[str, Any]:
    return {
        "name": layout.name,
        "stage": strategy.stage_of(layout),
        "device_matrix": [*layout.device_matrix],
        "tensor_map": [*layout.tensor_map],
        "param_split_shape": [*layout.param_split_shape],
        "indices_offset": [*layout.indices_offset],
        "field": layout.field,
        "opt_weight_shard_step": layout.opt_shard_step,
        "opt_weight_shard_size": layout.opt_shard_size,
    }
