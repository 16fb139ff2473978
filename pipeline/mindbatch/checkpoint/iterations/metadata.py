"""metadata.json of a Checkpoint 2.0: which region of which tensor each file holds; read, and written.

Source: mindformers 2.0, checkpoint/metadata.py, sharded_tensor.py and reshard.py.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindbatch.checkpoint.error_lines import collecting, located, raise_if_any, shown
from mindbatch.checkpoint.folders.iteration_files import (
    COMMON,
    METADATA,
    TRACKER,
    holds_weights,
    iteration_name,
)
from mindbatch.checkpoint.folders.tensor_set import TensorSet
from mindbatch.checkpoint.formats.ckpt_file import DTYPE_OF, WRITTEN_TYPES
from mindbatch.checkpoint.formats.stored import MAX_DIMENSIONS
from mindbatch.checkpoint.json_object import read_json_object
from mindbatch.checkpoint.placement.regions import (
    Placement,
    RankFiles,
    Region,
    Shape,
    StoredShard,
    full_region,
    is_inside,
    single_segment,
    whole_placements,
)
from mindbatch.checkpoint.strategy.strategy import TensorLayout, layout_errors
from mindbatch.io.errors import CheckpointError

_LARGEST_FILE = 1 << 30
"""Bytes; a tensor on each of 64 ranks takes about 10 KiB."""
_STORED_KEY = re.compile(r"\('([^'\\]{1,1000})', \((\d{1,9}),\)\)")


@dataclass(frozen=True)
class _Tensor:
    """A tensor as the file describes it.

    fragments: number of fragments along each dimension.
    layout: layout over the ranks of a stage, if there is one.
    """

    name: str
    dtype: str
    shape: Shape
    fragments: Shape
    layout: TensorLayout | None
    ranks: tuple[int, ...]

    def region(self, fragment: int) -> Region:
        """Computes the region of a fragment; fragments are counted in row-major order."""
        at: list[tuple[int, int]] = []
        for size, count in zip(reversed(self.shape), reversed(self.fragments), strict=True):
            fragment, index = divmod(fragment, count)
            at.insert(0, (index * (size // count), (index + 1) * (size // count)))
        return tuple(at)

    def region_of_rank(self, rank: int) -> Region | None:
        """Computes the region of a rank by the layout; None if the layout does not have the rank."""
        if self.layout is None or rank not in self.ranks:
            return None
        slices = self.layout.slice_of(self.ranks.index(rank), self.shape)
        return tuple((part.start, part.stop) for part in slices)


def placements(iteration: Path, files: Sequence[TensorSet]) -> dict[str, Placement]:
    """Locates each weight: for each of `files`, the iteration's files of weights, its shard or None.

    Raises:
        CheckpointError: lists what is missing or contradicts itself: the entries, the files, or both.
    """
    if len(files) == 1 and not (iteration / METADATA).exists():
        return whole_placements(files[0].shapes)
    path = iteration / METADATA
    content = read_json_object(path, _LARGEST_FILE)
    reader = _MetadataReader(files)
    by_name = reader.read(content.get("state_dict_metadata"), content.get("storage_data"))
    raise_if_any(reader.errors, str(path))
    return by_name


class _MetadataReader:
    def __init__(self, files: Sequence[TensorSet]) -> None:
        self._files = files
        self._names = [next(iter(tensors.files)) for tensors in files]
        self._number = {file: number for number, file in enumerate(self._names)}
        self.errors: list[str] = []

    def read(self, described: Any, stored: Any) -> dict[str, Placement]:
        if not isinstance(described, Mapping) or not isinstance(stored, Mapping):
            self.errors.append("must have the objects state_dict_metadata and storage_data")
            return {}
        stored_shards = self._stored_shards(stored)
        unknown = [name for name in stored_shards if name not in described]
        self.errors += [f"{shown(name)}: is stored, and state_dict_metadata has it not" for name in unknown]
        by_name = {}
        for name, entry in described.items():
            if name in stored_shards:
                with collecting(self.errors), located(shown(name)):
                    by_name[name] = self._placement(_tensor(name, entry), stored_shards[name])
        self.errors += self._left_over(by_name, stored_shards)
        return by_name

    def _stored_shards(self, stored: Mapping[str, Any]) -> dict[str, list[tuple[int, str, int]]]:
        """Reads the shards of each weight: number, name of the file, rank that wrote it."""
        shards: dict[str, list[tuple[int, str, int]]] = {}
        for key, entries in stored.items():
            match = _STORED_KEY.fullmatch(key)
            if match is None or not isinstance(entries, list):
                self.errors.append(
                    f"storage_data: {shown(key)}: must be ('NAME', (FRAGMENT,)) with a list of files"
                )
                continue
            for entry in entries:
                file = entry.get("file_name") if isinstance(entry, Mapping) else None
                rank = entry.get("storage_rank") if isinstance(entry, Mapping) else None
                if not isinstance(file, str) or type(rank) is not int or rank < 0:
                    self.errors.append(f"storage_data: {shown(key)}: must have file_name and storage_rank")
                elif holds_weights(file):
                    shards.setdefault(match[1], []).append((int(match[2]), file, rank))
        return shards

    def _placement(self, tensor: _Tensor, stored: Sequence[tuple[int, str, int]]) -> Placement:
        """Locates a tensor's fragments. CheckpointError unless they and their files make one tensor."""
        count = math.prod(tensor.fragments)
        regions: list[Region | None] = [None] * len(self._files)
        for fragment, file, rank in stored:
            if fragment >= count:
                raise CheckpointError(f"fragment {fragment} of {count}")
            region = tensor.region(fragment)
            if (by_layout := tensor.region_of_rank(rank)) not in (None, region):
                raise CheckpointError(
                    f"fragment {fragment} is {region}, and by its layout rank {rank} has {by_layout}"
                )
            if file not in self._number:
                raise CheckpointError(f"is in {shown(file)}, which does not exist")
            number = self._number[file]
            if regions[number] not in (None, region):
                raise CheckpointError(f"{shown(file)} is said to have two fragments of it")
            regions[number] = self._checked(tensor, number, region)
        missing = {*range(count)} - {fragment for fragment, _, _ in stored}
        if missing:
            raise CheckpointError(f"fragment {min(missing)} of {count} is in no file")
        shards = [
            None if region is None else single_segment(self._files[number].info(tensor.name).shape, region)
            for number, region in enumerate(regions)
        ]
        return Placement(tensor.name, tensor.shape, tuple(shards))

    def _checked(self, tensor: _Tensor, number: int, region: Region) -> Region:
        """Returns the region in a file: the fragment, or the whole tensor as MindSpore may save it."""
        info = self._files[number].tensors.get(tensor.name)
        where = shown(self._names[number])
        if info is None:
            raise CheckpointError(f"is said to be in {where}, and is not")
        if info.dtype != tensor.dtype:
            raise CheckpointError(f"is {info.dtype} in {where}, and {tensor.dtype} here")
        if info.shape == tuple(stop - start for start, stop in region):
            return region
        if info.shape == (tensor.shape or (1,)):
            return full_region(info.shape)
        raise CheckpointError(
            f"has shape {[*info.shape]} in {where}; the fragment is {[*region]} of {[*tensor.shape]}"
        )

    def _left_over(self, by_name: Mapping[str, Placement], stored: Mapping[str, Any]) -> Iterator[str]:
        """Yields a line for each tensor of a file that metadata.json does not describe."""
        for number, (file, tensors) in enumerate(zip(self._names, self._files, strict=True)):
            for name in tensors.tensors:
                is_known = name in stored and (
                    name not in by_name or by_name[name].shards[number] is not None
                )
                if not is_known:
                    yield f"{shown(name)}: is in {shown(file)}, and nothing here says so"


def _tensor(name: str, entry: Any) -> _Tensor:
    """Reads the entry of a tensor. CheckpointError if it is none."""
    properties = _of_kind(entry, "properties", Mapping)
    dtype = DTYPE_OF.get(str(properties.get("dtype")))
    if dtype is None:
        raise CheckpointError(f"dtype {shown(properties.get('dtype'))}; known are {', '.join(DTYPE_OF)}")
    shape = _whole_numbers(entry, "global_shape")
    fragments = _whole_numbers(entry, "axis_fragmentations")
    if len(fragments) != len(shape) or any(
        size % count for size, count in zip(shape, fragments, strict=True)
    ):
        raise CheckpointError(f"axis_fragmentations {[*fragments]} do not divide the shape {[*shape]}")
    layout = entry.get("layout")
    if layout is None:
        return _Tensor(name, dtype, shape, fragments, None, ())
    ranks = _whole_numbers(layout, "rank_list", least=0, max_count=1 << 20)
    axes = _of_kind(layout, "tensor_map", list)
    tensor_map = tuple(tuple(axis) if isinstance(axis, list) else axis for axis in axes)
    flat = [axis for entry in tensor_map for axis in (entry if isinstance(entry, tuple) else (entry,))]
    if any(type(axis) is not int for axis in flat):
        raise CheckpointError("tensor_map: must be whole numbers, or lists of them")
    over_ranks = TensorLayout(name, _whole_numbers(layout, "device_matrix"), tensor_map)
    if errors := layout_errors(over_ranks):
        raise CheckpointError(errors[0])
    if over_ranks.num_devices != len(ranks):
        raise CheckpointError(
            f"rank_list has {len(ranks)} ranks, and the device matrix {over_ranks.num_devices}"
        )
    return _Tensor(name, dtype, shape, fragments, over_ranks, ranks)


def _of_kind(entry: Any, key: str, kind: type) -> Any:
    value = entry.get(key) if isinstance(entry, Mapping) else None
    if not isinstance(value, kind):
        raise CheckpointError(f"{key}: is missing, or of another kind")
    return value


def _whole_numbers(entry: Any, key: str, least: int = 1, max_count: int = MAX_DIMENSIONS) -> tuple[int, ...]:
    """Reads a list of at most `max_count` whole numbers, none below `least`."""
    values = _of_kind(entry, key, list)
    if len(values) > max_count or any(type(value) is not int or value < least for value in values):
        raise CheckpointError(
            f"{key} {shown(values)}: must be whole numbers from {least}, at most {max_count} of them"
        )
    return tuple(values)


_NUMBER = 0
"""Of the iteration: nothing was trained."""
_COMMON = {
    "epoch_num": 0,
    "step_num": 0,
    "global_step": 0,
    "loss_scale": None,
    "global_batch_size": None,
    "ckpt_status": None,
}
_MESH_NAMES = ["a", "b", "c"]


def file_name(rank: int, num_ranks: int) -> str:
    """Names the file of a rank's weights, below the folder."""
    return f"{iteration_name(_NUMBER)}/model-{rank:07d}-{num_ranks:07d}.safetensors"


def descriptions(
    files: RankFiles, whole: RankFiles, model_parallel: int, dtypes: Mapping[str, str]
) -> dict[str, bytes]:
    """Makes the other files, by name.

    whole: content of a single file with everything. model_parallel: number of ranks of each stage.

    Raises:
        CheckpointError: lists tensors whose shards are no equal parts of one dimension.
    """
    home = iteration_name(_NUMBER)
    others = {TRACKER: str(_NUMBER).encode(), f"{home}/{COMMON}": _json(_COMMON)}
    if len(files.ranks) == 1:
        return others  # MindFormers writes no metadata.json either, and takes all files as they are
    described: dict[str, Any] = {}
    stored: dict[str, list[dict[str, Any]]] = {}
    errors: list[str] = []
    for name, full in whole.ranks[0].items():
        with collecting(errors):
            fragments = _fragments(name, full, files)
            described[name] = _described(full.shard.shape, fragments, model_parallel, dtypes[name])
            for fragment in sorted({index for _, index in fragments.values()}):
                ranks = [rank for rank, (_, index) in fragments.items() if index == fragment]
                stored[str((name, (fragment,)))] = [
                    {
                        "file_name": file_name(rank, len(files.ranks)).rpartition("/")[2],
                        "storage_rank": rank,
                        "rank_group": ranks,
                    }
                    for rank in ranks
                ]
    raise_if_any(errors)
    content = {"state_dict_metadata": described, "storage_data": stored}
    return {**others, f"{home}/{METADATA}": _json(content)}


def _fragments(name: str, full: StoredShard, files: RankFiles) -> dict[int, tuple[Shape, int]]:
    """Counts the fragments along each dimension, and numbers the one that each rank has, by rank."""
    fragments = {}
    for rank, tensors in enumerate(files.ranks):
        shard = tensors.get(name)
        if shard is None:
            continue
        local, whole = shard.shard.view, full.shard.view
        start = _start(name, full, shard)
        parts = tuple(size // part for size, part in zip(whole, local, strict=True))
        is_even = all(
            size % part == 0 and first % part == 0
            for size, part, first in zip(whole, local, start, strict=True)
        )
        if shard.shard.padding or not is_even:
            raise CheckpointError(
                f"tensor {shown(name)} {[*full.shard.shape]}: rank {rank} would have {[*shard.shard.shape]}; "
                "a Checkpoint 2.0 knows equal parts only"
            )
        index = 0
        for first, part, count in zip(start, local, parts, strict=True):
            index = index * count + first // part
        fragments[rank] = parts, index
    return fragments


def _start(name: str, full: StoredShard, shard: StoredShard) -> Shape:
    """Finds where a rank's shard begins in the whole tensor."""
    starts = {
        tuple(
            first - own
            for (first, _), (own, _) in zip(around.local_at(segment.whole), segment.local, strict=True)
        )
        for tensor, segment in shard.segments
        for other, around in full.segments
        if other == tensor and is_inside(segment.whole, around.whole)
    }
    if len(starts) != 1:
        raise CheckpointError(f"tensor {shown(name)}: a rank would have several parts of it")
    [start] = starts
    return start


def _described(
    shape: Shape, fragments: Mapping[int, tuple[Shape, int]], model_parallel: int, dtype: str
) -> dict[str, Any]:
    parts = next(iter(fragments.values()))[0]
    first = min(fragments) // model_parallel * model_parallel
    is_cut = math.prod(parts) > 1
    return {
        "properties": {
            "dtype": WRITTEN_TYPES[dtype],
            "replica_id": [0] * model_parallel if is_cut else [*range(model_parallel)],
            "allow_shape_mismatch": False,
            "allow_to_save": True,
        },
        "global_shape": [*shape],
        "axis_fragmentations": [*parts],
        "layout": {
            "device_matrix": [1, 1, model_parallel],
            "tensor_map": [0 if count > 1 else -1 for count in parts],
            "interleaved_parallel": False,
            "alias_name": _MESH_NAMES,
            "rank_list": [*range(first, first + model_parallel)],
        },
        "chunk": [
            {
                "global_offset": [fragment],
                "local_shape": [size // count for size, count in zip(shape, parts, strict=True)],
            }
            for fragment in range(math.prod(parts))
        ],
    }


def _json(content: Any) -> bytes:
    return json.dumps(content, indent=4).encode()
