"""Files of a Checkpoint 2.0 beside its tensors, by which MindFormers loads what a reshard has cut."""

import json
import math
from collections.abc import Mapping
from typing import Any

from mindbatch.checkpoint.faults import collecting, raise_if_any, shown
from mindbatch.checkpoint.folders.iteration_files import COMMON, METADATA, iteration_name
from mindbatch.checkpoint.iterations.metadata import MINDSPORE_DTYPES
from mindbatch.checkpoint.placement.regions import RankFiles, Shape, StoredShard, is_inside
from mindbatch.io.errors import CheckpointError
from mindbatch.io.foreign_formats import ITERATION_TRACKER

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
    """The file of a rank's weights, from the folder on."""
    return f"{iteration_name(_NUMBER)}/model-{rank:07d}-{num_ranks:07d}.safetensors"


def descriptions(
    files: RankFiles, whole: RankFiles, model_parallel: int, dtypes: Mapping[str, str]
) -> dict[str, bytes]:
    """The other files, by name. whole: what one file would hold. model_parallel: ranks of each stage.

    Raises:
        CheckpointError: lists tensors whose shards are no equal parts of one dimension.
    """
    home = iteration_name(_NUMBER)
    others = {ITERATION_TRACKER: str(_NUMBER).encode(), f"{home}/{COMMON}": _json(_COMMON)}
    if len(files.ranks) == 1:
        return others  # MindFormers writes no metadata.json either, and takes all files as they are
    described: dict[str, Any] = {}
    stored: dict[str, list[dict[str, Any]]] = {}
    faults: list[str] = []
    for name, full in whole.ranks[0].items():
        with collecting(faults):
            pieces = _pieces(name, full, files)
            described[name] = _described(full.shard.shape, pieces, model_parallel, dtypes[name])
            for piece in sorted({place for _, place in pieces.values()}):
                ranks = [rank for rank, (_, place) in pieces.items() if place == piece]
                stored[str((name, (piece,)))] = [
                    {
                        "file_name": file_name(rank, len(files.ranks)).rpartition("/")[2],
                        "storage_rank": rank,
                        "rank_group": ranks,
                    }
                    for rank in ranks
                ]
    raise_if_any(faults)
    content = {"state_dict_metadata": described, "storage_data": stored}
    return {**others, f"{home}/{METADATA}": _json(content)}


def _pieces(name: str, full: StoredShard, files: RankFiles) -> dict[int, tuple[Shape, int]]:
    """By rank: into how many parts each dimension is cut, and which of the pieces the rank has."""
    pieces = {}
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
        pieces[rank] = parts, index
    return pieces


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
    shape: Shape, pieces: Mapping[int, tuple[Shape, int]], model_parallel: int, dtype: str
) -> dict[str, Any]:
    parts = next(iter(pieces.values()))[0]
    first = min(pieces) // model_parallel * model_parallel
    is_cut = math.prod(parts) > 1
    return {
        "properties": {
            "dtype": MINDSPORE_DTYPES[dtype],
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
                "global_offset": [piece],
                "local_shape": [size // count for size, count in zip(shape, parts, strict=True)],
            }
            for piece in range(math.prod(parts))
        ],
    }


def _json(content: Any) -> bytes:
    return json.dumps(content, indent=4).encode()
