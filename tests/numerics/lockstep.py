"""All ranks of a tensor-parallel model in one process: each runs until its next collective, then all meet."""

from collections.abc import Generator, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mindbatch.checkpoint.folders.model_folder import StoredWeights
from mindbatch.kernels.interface import ProgramKernels, allocate
from mindbatch.kernels.recording import RecordedCall, Recording, Symbol
from mindbatch.kernels.shapes import CacheGeometry
from mindbatch.layers.attention import attention_shape
from mindbatch.layers.decoder import recordings_of
from mindbatch.layers.rank import Rank
from mindbatch.models.architecture import Architecture
from mindbatch.models.loader import load_weights
from mindbatch.models.model_spec import ModelSpec
from mindbatch.models.registry import declaration
from mindbatch.parallel.topology import RankPart, Stage

Array = NDArray[np.float32]
BLOCK_SIZE = 16

RankRun = Generator[tuple[RecordedCall, Array], Array, Array]
"""Gives what the rank brings to each collective, takes what came of it, and returns its logits."""


def logits(
    arch: Architecture, ranks: Iterable[StoredWeights], kernels: ProgramKernels, ids: Sequence[int]
) -> list[Array]:
    """The logits [tokens, vocabulary] of one prompt on each rank; at most BLOCK_SIZE tokens."""
    runs = [_run(arch, rank, kernels, ids) for rank in ranks]
    brought: list[Any] = [None] * len(runs)
    joined: Any = None
    found = []
    while not found:
        for number, run in enumerate(runs):
            try:
                brought[number] = run.send(joined)
            except StopIteration as ended:
                found.append(ended.value)
        if not found:
            joined = _joined([*brought])
    assert len(found) == len(runs), "not all ranks came to the same collective"
    return found


def _joined(brought: Sequence[tuple[RecordedCall, Array]]) -> Array:
    [operation] = {call.operation for call, _ in brought}
    parts = [part for _, part in brought]
    if operation == "all_reduce":
        return np.sum(parts, 0, dtype=np.float32)
    return np.concatenate(parts, -1)[:, : brought[0][0].settings["total"]]


def _run(arch: Architecture, weights: StoredWeights, kernels: ProgramKernels, ids: Sequence[int]) -> RankRun:
    shard, stage = weights.shard, Stage(range(arch.num_layers))
    shapes = [attention_shape(arch, layer, shard) for layer in stage.layers]
    cache = allocate(shapes, CacheGeometry(1, BLOCK_SIZE), kernels)
    model = declaration(arch.model_type).tree(arch)
    loaded = load_weights(ModelSpec.of(arch, RankPart(shard)), weights, kernels)
    model.bind("", Rank(loaded, kernels, cache.layers, stage, shard))
    recording = recordings_of(model, adapted=False).whole
    assert recording is not None
    values: dict[Symbol, Any] = dict(zip(recording.inputs, _inputs(ids), strict=True))
    for call in recording.calls:
        if call.operation in ("all_reduce", "all_gather"):
            values[call.outputs[0]] = yield call, values[call.inputs[0]]
            continue
        read = [*dict.fromkeys(each for each in call.inputs if isinstance(each, Symbol))]
        alone = kernels.program(kernels.lowered(Recording(read, [call], [*call.outputs])))
        found = [each.copy() for each in alone.run([values[each] for each in read])]
        values.update(zip(call.outputs, found, strict=True))
    last: Array = values[recording.outputs[-1]]
    return last


def _inputs(ids: Sequence[int]) -> list[NDArray[np.int32]]:
    """One sequence in block 0, as the fields of a `Batch`."""
    count = len(ids)
    place, tables = np.arange(count, dtype=np.int32), np.zeros((count, 1), np.int32)
    arrays = (np.asarray(ids, np.int32), place, place, np.zeros(count, np.int32), tables, place + 1)
    return [array.astype(np.int32) for array in arrays]
