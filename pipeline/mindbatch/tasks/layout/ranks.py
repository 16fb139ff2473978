"""Computes the shards of a native model on each rank, and writes MindSpore's strategy files.

Only config.json is needed. Of weights, if there are any, the headers are read for names and dtypes.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mindbatch.architecture.architecture import Architecture
from mindbatch.architecture.stage_cut import cut, even_in_time
from mindbatch.architecture.tensor_spec import TensorSpec
from mindbatch.checkpoint.error_lines import shown
from mindbatch.checkpoint.folders.folder_files import CONFIG_NAME, existing_folder, file_names
from mindbatch.checkpoint.folders.model_folder import ModelFolder, is_cut
from mindbatch.checkpoint.folders.weight_files import weights_in
from mindbatch.checkpoint.formats.floats import STORED_FLOATS
from mindbatch.checkpoint.formats.stored import DTYPES
from mindbatch.checkpoint.placement.placements import (
    allowed_model_parallel,
    check_sizes,
    described_cut,
    placements,
    with_replicas,
)
from mindbatch.checkpoint.placement.regions import Placement, Placements, Shard
from mindbatch.checkpoint.strategy.placements import stage_strategies
from mindbatch.checkpoint.strategy.strategy_file import strategy_bytes, strategy_name
from mindbatch.config.model_schema import ModelConfig, ParallelConfig, ignored_keys
from mindbatch.io.amounts import counted, ranges, shape_text, table
from mindbatch.io.errors import CheckpointError, ConfigError
from mindbatch.io.screen_text import printable
from mindbatch.loading.providers import open_model
from mindbatch.model_spec.described_folder import checkpoint_names, described_config
from mindbatch.model_spec.registry import tensor_specs
from mindbatch.parallel.topology import DeviceMap, Stage
from mindbatch.tasks.layout.parts import (
    PlanPart,
    layout_head,
    refuse_other_files,
    sizes_line,
    strategy_lines,
    write_strategies,
)

_DTYPE_KEYS = ("dtype", "torch_dtype")


@dataclass(frozen=True)
class RankPlan:
    """The shards of each rank. dtype_from: the source of the dtypes, in words.

    files: the content of the strategy files by name. is_cut: True for rank folders, whose stages are fixed.
    """

    architecture: Architecture
    parallel: ParallelConfig
    stages: Sequence[Stage]
    placements: Placements
    dtypes: Mapping[str, str]
    dtype_from: str
    files: Mapping[str, bytes]
    is_cut: bool = False

    @property
    def ranks_of_stage(self) -> int:
        return self.parallel.data_parallel * self.parallel.model_parallel

    @property
    def device_map(self) -> DeviceMap:
        """Device map that divides the layers of a run as they are divided here."""
        is_free = not self.is_cut and len(self.stages) > 1
        return tuple(len(stage.layers) for stage in self.stages) if is_free else None


def plan_ranks(
    model: ModelConfig, parallel: ParallelConfig, folder: Path | None = None, *, is_of_run: bool = False
) -> RankPlan:
    """Computes the plan, and writes nothing.

    folder: where strategy files will be written; None is without them.
    is_of_run: True divides the layers over the stages as a run does.

    Raises:
        ConfigError: the model cannot be divided over these ranks, strategy files cannot describe it, or
            `folder` has other files.
        CheckpointError: the folder is damaged, the weights do not fit config.json, or a dtype is unknown.
    """
    assert model.checkpoint_name_or_path is not None
    path = existing_folder(model.checkpoint_name_or_path)
    weights: ModelFolder | None = None
    content: Mapping[str, Any]
    if weights_in(file_names(path)):
        weights, spec = open_model(model)
        content, arch = weights.config, spec.architecture
    else:
        content, _, arch = described_config(path, model.type, ignored_keys(model))
    specs = tensor_specs(arch)
    sizes, device_map = (parallel.model_parallel, parallel.pipeline_stage), parallel.layer_counts
    check_sizes(specs, *sizes, device_map, keys="parallel.")
    if device_map is None and is_of_run and not is_cut(path):  # rank folders are of even stages
        device_map = even_in_time(specs, parallel.pipeline_stage)
    by_name = placements(specs, *sizes, device_map)
    if weights is not None:
        names = checkpoint_names(arch, weights.names)
        by_name = {names(name): replace(shards, name=names(name)) for name, shards in by_name.items()}
    dtypes, dtype_from = _dtypes(model.dtype, content, weights, by_name)
    copies = with_replicas(by_name, parallel.model_parallel, parallel.data_parallel)
    files = {} if folder is None else _files(specs, parallel, copies)
    if folder is not None:
        refuse_other_files(folder, files)
    stages = cut(specs, parallel.pipeline_stage, device_map)
    return RankPlan(arch, parallel, stages, copies, dtypes, dtype_from, files, is_cut(path))


def write_layout(plan: RankPlan, folder: Path | None = None, replace: bool = False) -> PlanPart:
    """Writes the strategy files to `folder`, if any. Raises ConfigError if others exist there."""
    paths = [] if folder is None else write_strategies(folder, plan.files, replace)
    content = ranks_json(plan, paths)
    return PlanPart(content, ranks_page(plan, content))


def _dtypes(
    dtype: str, content: Mapping[str, Any], weights: ModelFolder | None, names: Iterable[str]
) -> tuple[dict[str, str], str]:
    """Finds dtypes in the settings, else in the weights, else in config.json, and names the source."""
    if dtype != "auto":
        return dict.fromkeys(names, STORED_FLOATS[dtype]), f"{dtype}, by model.dtype"
    if weights is not None:
        dtypes = {name: weights.info(name).dtype for name in names}
        stored_dtypes = {*dtypes.values()}
        listed = ", ".join(dtype for dtype, stored in STORED_FLOATS.items() if stored in stored_dtypes)
        return dtypes, f"{listed}, as the weights are"
    key = next((key for key in _DTYPE_KEYS if content.get(key) is not None), None)
    if key is None:
        return dict.fromkeys(names, "F32"), f"float32, for neither weights nor {CONFIG_NAME} tell"
    dtype = str(content[key]).removeprefix("torch.")
    if dtype not in STORED_FLOATS:
        raise CheckpointError(
            f"{CONFIG_NAME}: {key}={shown(content[key])}: bytes are counted for "
            f"{', '.join(STORED_FLOATS)}; give model.dtype"
        )
    return dict.fromkeys(
        names, STORED_FLOATS[dtype]
    ), f"{dtype}, by {key} of {CONFIG_NAME}; no weights are there"


def _files(specs: Sequence[TensorSpec], parallel: ParallelConfig, copies: Placements) -> dict[str, bytes]:
    """Makes the strategy file of each stage, named after its first rank."""
    size, stages = parallel.model_parallel, parallel.pipeline_stage
    try:
        strategies = stage_strategies(copies, size, stages)
    except CheckpointError as error:
        able = ", ".join(map(str, _writable(specs, stages)))
        hint = f"allowed with layout.dir: parallel.model_parallel={able}; without it there is the table"
        raise ConfigError(f"layout.dir: {problem}; {hint}" for problem in error.lines) from None
    devices = parallel.data_parallel * size
    return {
        strategy_name(stage * devices): strategy_bytes(strategy) for stage, strategy in enumerate(strategies)
    }


def _writable(specs: Sequence[TensorSpec], stages: int) -> Iterator[int]:
    """Yields the values of model_parallel whose layouts strategy files can describe."""
    for size in allowed_model_parallel(specs):
        try:
            stage_strategies(placements(specs, size, stages), size, stages)
        except CheckpointError:
            continue
        yield size


_UNSAYABLE = "MindSpore's strategy files cannot say this layout: they know no padding, and one region a rank"
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_TITLES = ["tensor", "shape", "cut", "ranks", "shape on a rank", "bytes on a rank", "bytes in all"]


def ranks_page(plan: RankPlan, content: Mapping[str, Any]) -> str:
    """Makes the page: sharded tensors, sums by rank, and the strategy files. content: the JSON."""
    paths = content["strategy_files"]
    files = strategy_lines(paths) if paths or _is_sayable(plan) else [_UNSAYABLE]
    layout = layout_page(content["tensors"], content["rank_sums"])
    return "\n\n".join(["\n".join(_head(plan, content)), layout, "\n".join(files)])


def _is_sayable(plan: RankPlan) -> bool:
    """True if a strategy can describe the shards of all ranks; padding is on the last ranks."""
    ends = [
        placement.shards[rank]
        for placement in plan.placements.values()
        for rank in placement.holders[::-1][:1]
    ]
    return all(shard is None or (len(shard.segments) == 1 and not shard.padding) for shard in ends)


def _head(plan: RankPlan, content: Mapping[str, Any]) -> Iterator[str]:
    yield f"layout of {plan.architecture.model_type}, elements {plan.dtype_from}"
    yield sizes_line(content)
    if plan.parallel.pipeline_stage > 1:
        for stage in plan.stages:
            first = stage.index * plan.ranks_of_stage
            ranks = ranges(range(first, first + plan.ranks_of_stage))
            yield f"stage {stage.index}: ranks {ranks}, layers {ranges(stage.layers)}"


def ranks_json(plan: RankPlan, paths: Sequence[Path]) -> dict[str, Any]:
    """Describes every tensor as JSON; ranks with the same shard are listed together."""
    tensors = [tensor_json(placement, plan.dtypes[name]) for name, placement in plan.placements.items()]
    return {
        **layout_head(plan.architecture.model_type, plan.parallel, paths),
        "dtype": plan.dtype_from,
        "rank_sums": rank_sums(tensors, plan.ranks_of_stage, plan.parallel.pipeline_stage),
        "tensors": tensors,
    }


def tensor_json(placement: Placement, dtype: str) -> dict[str, Any]:
    """Describes a tensor and the shards of its ranks, with padding, as JSON."""
    holders: dict[Shard, list[int]] = {}
    for rank in placement.holders:
        shard = placement.shards[rank]
        assert shard is not None
        holders.setdefault(shard, []).append(rank)
    itemsize = DTYPES[dtype]
    return {
        "name": placement.name,
        "dtype": dtype,
        "shape": [*placement.shape],
        "bytes": math.prod(placement.shape) * itemsize,
        "cut": described_cut(placement),
        "shares": [
            {
                "ranks": ranks,
                "shape": [*shard.shape],
                "bytes": math.prod(shard.shape) * itemsize,
                "pieces": [{"local": segment.local, "whole": segment.whole} for segment in shard.segments],
                "padding": [*shard.padding],
            }
            for shard, ranks in holders.items()
        ],
    }


def rank_sums(tensors: Iterable[Mapping[str, Any]], ranks_of_stage: int, stages: int) -> list[dict[str, int]]:
    """Counts the tensors and bytes of each rank."""
    sums = [
        {"rank": rank, "stage": rank // ranks_of_stage, "tensors": 0, "bytes": 0}
        for rank in range(ranks_of_stage * stages)
    ]
    for share in (share for tensor in tensors for share in tensor["shares"]):
        for rank in share["ranks"]:
            sums[rank]["tensors"] += 1
            sums[rank]["bytes"] += share["bytes"]
    return sums


def layout_page(tensors: Sequence[Mapping[str, Any]], sums: Sequence[Mapping[str, int]]) -> str:
    """Makes a table of the tensors, with one line for layers that are sharded alike, and of the sums by rank.

    Layers of several stages share a line, too; each is on the ranks of its own stage.
    """
    alike: dict[tuple[object, ...], list[Mapping[str, Any]]] = {}
    for tensor in tensors:
        local = tuple((shape, len(ranks)) for shape, ranks in _ranks_by_shape(tensor).items())
        key = (_family(tensor["name"]), *tensor["shape"], tensor["bytes"], tensor["cut"], local)
        alike.setdefault(key, []).append(tensor)
    cells = [line for group in alike.values() for line in _lines(group)]
    return "\n".join([*table([_TITLES, *cells], right=(5, 6)), "", *_sum_lines(tensors, sums)])


def _lines(group: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Makes a line for each shape of a tensor's shards: one, unless it is divided unevenly."""
    tensor = group[0]
    lines: list[list[str]] = []
    for (shape, nbytes), ranks in _ranks_by_shape(tensor).items():
        numbers = [f"{nbytes:,}", f"{nbytes * len(ranks) * len(group):,}"]
        holders = {rank for other in group for rank in _ranks_by_shape(other)[shape, nbytes]}
        by_stage = ", by stage" if len(holders) > len(ranks) else ""
        where = f"{ranges(sorted(holders))}{by_stage}"
        cells = [_names(group), shape_text(tensor["shape"]), tensor["cut"], where, shape_text(shape)]
        lines.append([*cells, *numbers])
    return lines


def _ranks_by_shape(tensor: Mapping[str, Any]) -> dict[tuple[tuple[int, ...], int], list[int]]:
    """Groups the ranks of a tensor by the shape and bytes of their shards."""
    by_shape: dict[tuple[tuple[int, ...], int], list[int]] = {}
    for share in tensor["shares"]:
        by_shape.setdefault((tuple(share["shape"]), share["bytes"]), []).extend(share["ranks"])
    return by_shape


def _family(name: str) -> str:
    """Removes the number of a layer from a name: the rest is common to the tensors of all layers."""
    return _NUMBER.sub("[]", name) if len(_NUMBER.findall(name)) == 1 else name


def _names(group: Sequence[Mapping[str, Any]]) -> str:
    """Combines the names of a group in one: model.layers.[0-3, 6].norm.weight."""
    name = group[0]["name"]
    if len(group) == 1:
        return printable(name)
    layers = ranges(sorted(int(number) for tensor in group for number in _NUMBER.findall(tensor["name"])))
    return printable(_NUMBER.sub(f"[{layers}]", name))


def _sum_lines(tensors: Sequence[Mapping[str, Any]], sums: Sequence[Mapping[str, int]]) -> list[str]:
    alike: dict[tuple[int, int], list[int]] = {}
    for rank in sums:
        alike.setdefault((rank["tensors"], rank["bytes"]), []).append(rank["rank"])
    lines = [["ranks", "tensors", "bytes on a rank"]]
    lines += [[ranges(ranks), f"{count:,}", f"{nbytes:,}"] for (count, nbytes), ranks in alike.items()]
    stored, full = sum(rank["bytes"] for rank in sums), sum(tensor["bytes"] for tensor in tensors)
    return [
        *table(lines, right=(1, 2)),
        "",
        f"{len(tensors):,} tensors of {full:,} bytes; {stored:,} bytes on {counted(len(sums), 'rank')}",
    ]
