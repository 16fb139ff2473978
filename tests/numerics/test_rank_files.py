"""Rank files that `mindbatch reshard` wrote, loaded by the native layers: the logits of the whole model."""

from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_folders import descriptions, ragged, write_folder
from numpy.typing import NDArray

from mindbatch.checkpoint.folders.model_folder import ModelFolder, StoredWeights
from mindbatch.checkpoint.placement.placements import allowed_model_parallel
from mindbatch.kernels.choice import choose_kernels
from mindbatch.kernels.interface import ProgramKernels, allocate
from mindbatch.kernels.recording import RecordedCall, Recording, Symbol
from mindbatch.kernels.shapes import CacheGeometry
from mindbatch.layers.attention import attention_shape
from mindbatch.layers.decoder import recordings_of
from mindbatch.layers.rank import Rank
from mindbatch.models.architecture import Architecture
from mindbatch.models.loader import load_weights
from mindbatch.models.model_spec import ModelSpec
from mindbatch.models.registry import declaration, describe, tensor_specs
from mindbatch.parallel.topology import RankPart, Stage, TensorSlice
from mindbatch.tasks.reshard.schema import ReshardConfig
from mindbatch.tasks.reshard.task import run as run_reshard

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


TOKENS = 12
# Positions in a table, rotary ones, and more ranks than key-value heads.
FEW = [("llama", "auto", 2), ("gpt2", "auto", 4), ("qwen2", "auto", 8)]
ALL = [(case, kernels, most) for case in descriptions() for kernels, most in (("auto", 8), ("reference", 8))]
"""Model, kernels and the most ranks."""
OTHERS = [pytest.param(*each, marks=pytest.mark.on_demand) for each in ALL if each not in FEW]
SLOW = [pytest.param(*each, marks=pytest.mark.slow) for each in FEW[1:]]
MODELS = [
    pytest.param(case, "auto", 2, marks=pytest.mark.slow)
    for case in descriptions()
    if case not in {each for each, *_ in FEW}
]


def cut(source: Path, ways: int, kind: str) -> Path:
    config = ReshardConfig(source=str(source))
    config.target.dir = str(source.with_name(f"cut_{ways}"))
    config.target.model_parallel, config.target.format = ways, kind
    assert run_reshard(config) == 0
    return Path(config.target.dir)


@pytest.mark.parametrize(("case", "kernels", "most"), [FEW[0], *SLOW, *MODELS, *OTHERS])
def test_logits_of_all_ranks_are_those_of_the_whole(
    case: str, kernels: str, most: int, tmp_path: Path
) -> None:
    write_folder(tmp_path / "whole", descriptions()[case])
    whole, chosen = ModelFolder(tmp_path / "whole"), choose_kernels(kernels, "CPU")
    assert isinstance(chosen, ProgramKernels)
    arch = describe(whole.config)
    ids = max(ragged(case), key=len)[:TOKENS]
    (expected,) = logits(arch, [whole], chosen, ids)
    ways_of = [ways for ways in allowed_model_parallel(tensor_specs(arch)) if 1 < ways <= most]
    for number, ways in enumerate(ways_of):
        folder = cut(whole.path, ways, ("safetensors", "ckpt")[number % 2])
        ranks = [ModelFolder(folder, TensorSlice(rank, ways)) for rank in range(ways)]
        for found in logits(arch, ranks, chosen, ids):
            assert found.shape == expected.shape == (len(ids), arch.vocab_size)
            assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
            assert (found.argmax(-1) == expected.argmax(-1)).all()
