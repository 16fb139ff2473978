"""What a placement gives to a rank is what the native layers hold there, byte for byte."""

import math
from pathlib import Path

import numpy as np
import pytest
from kernel_runs import packed, packed_stack
from model_folders import dense_cases, descriptions, write_folder
from numpy.typing import NDArray
from placed_arrays import index

from mindbatch.architecture.architecture import Architecture
from mindbatch.architecture.tensor_spec import Layout, TensorSpec, shard_specs, source_shapes
from mindbatch.backends.loader import load_weights
from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.checkpoint.formats.stored import StoredFile
from mindbatch.checkpoint.placement.placements import allowed_model_parallel, placements
from mindbatch.checkpoint.placement.regions import Placement
from mindbatch.kernels.choice import choose_kernels
from mindbatch.model_spec.described_folder import checkpoint_names
from mindbatch.model_spec.model_spec import ModelSpec
from mindbatch.model_spec.registry import describe, tensor_specs
from mindbatch.parallel.topology import RankPart, TensorSlice
from mindbatch.tasks.reshard.schema import ReshardConfig
from mindbatch.tasks.reshard.task import run as run_reshard

Array = NDArray[np.float32]
LATER = dense_cases()


def common_factor(arch: Architecture) -> int:
    """The largest number that divides the heads and the inner sizes of all layers."""
    sizes = [arch.heads]
    if arch.experts is None or len(arch.experts.layers) < arch.num_layers:
        sizes.append(arch.intermediate_size)
    if arch.experts is not None:
        sizes += [arch.experts.intermediate_size, *arch.experts.shared]
    if arch.recurrence is not None and arch.recurrence.delta is not None:
        sizes.append(arch.recurrence.delta.key_heads)
    return math.gcd(*sizes)


def rank_tensor(placement: Placement, rank: int, full: Array) -> Array:
    shard = placement.shards[rank]
    assert shard is not None
    local = np.zeros(shard.shape, np.float32)
    for piece in shard.segments:
        local[index(piece.local)] = full[index(piece.whole)]
    return local


def parameter(spec: TensorSpec, held: dict[str, Array]) -> Array:
    """The parameter as [outputs, inputs], from a rank's own tensors alone. spec: as `shard_specs` has it."""
    rows = []
    for part in spec.parts:
        array = held[part.source] if part.matrix is None else held[part.source][part.matrix]
        array = array.T if part.transposed else array
        rows += [array[low:high] for low, high in part.source_ranges(0, part.outputs)]
    found = np.concatenate(rows)
    one = spec.parts[0]
    axis = -1 if one.transposed else 0 if one.matrix is None else 1
    outputs = {name: held[name].shape[axis] for name in {p.source for p in spec.parts}}
    stacked = len({part.matrix for part in spec.parts})
    assert len(found) == stacked * sum(outputs.values()), f"{spec.name}: outputs that no part takes"
    return found


@pytest.mark.fast_cases(8)
@pytest.mark.parametrize("kernels", ["reference", "auto"])
@pytest.mark.parametrize(
    "case",
    [*descriptions(), *(pytest.param(case, marks=pytest.mark.on_demand) for case in LATER)],
)
def test_every_rank_holds_what_its_layers_hold(case: str, kernels: str, tmp_path: Path) -> None:
    described = descriptions(LATER[case]) if case in LATER else descriptions()
    write_folder(tmp_path, described[case])
    folder = ModelFolder(tmp_path)
    arch, chosen = describe(folder.config), choose_kernels(kernels, "CPU")
    specs, names = tensor_specs(arch), checkpoint_names(arch, folder.names)
    full = {source: folder.floats(names(source)) for source in source_shapes(specs)}
    allowed = allowed_model_parallel(specs)
    assert (allowed[-1] > 1) == (common_factor(arch) > 1)
    for ways in allowed:
        placed = placements(specs, ways)
        for rank in range(ways):
            piece = TensorSlice(rank, ways)
            held = {
                source: rank_tensor(placement, rank, full[source]) for source, placement in placed.items()
            }
            weights = load_weights(ModelSpec.of(arch, RankPart(piece)), folder, chosen)
            for spec, of_rank in zip(specs, shard_specs(specs, piece), strict=True):
                expected = parameter(of_rank, held)
                assert weights.outputs[spec.name] == len(expected)
                if spec.split:
                    units = expected.reshape(-1, spec.parts[0].unit, expected.shape[1])
                    stacks = units[:, : spec.split].swapaxes(1, 2), units[:, spec.split :]
                    for name, stack in zip(spec.stacks, stacks, strict=True):
                        assert weights.parameters[name].tobytes() == packed_stack(chosen, stack).tobytes()
                    continue
                found = weights.parameters[spec.name]
                if spec.matrices:
                    expected = packed_stack(chosen, np.stack(np.split(expected, spec.matrices)))
                elif spec.layout is Layout.PACKED and expected.ndim == 2:
                    expected = packed(chosen, expected)
                assert found.tobytes() == expected.tobytes(), (spec.name, ways, rank)


# Positions in a table, more ranks than key-value heads, a vocabulary that none divides.
@pytest.mark.parametrize(
    "case",
    [
        "gpt2",
        *(
            pytest.param(
                each, marks=pytest.mark.slow if each in ("llama", "qwen2") else pytest.mark.on_demand
            )
            for each in descriptions()
            if each != "gpt2"
        ),
    ],
)
def test_a_rank_loads_from_its_own_folder_what_it_loads_from_the_whole(case: str, tmp_path: Path) -> None:
    """Of the folders that `mindbatch reshard` writes, in both formats."""
    write_folder(tmp_path / "whole", descriptions()[case])
    whole, kernels = ModelFolder(tmp_path / "whole"), choose_kernels("auto", "CPU")
    arch = describe(whole.config)
    for number, ways in enumerate(allowed_model_parallel(tensor_specs(arch))[1:]):
        config = ReshardConfig(source=str(whole.path))
        config.target.dir, config.target.model_parallel = str(tmp_path / f"cut_{ways}"), ways
        config.target.format = ("safetensors", "ckpt")[number % 2]
        assert run_reshard(config) == 0
        for rank in range(ways):
            shard = TensorSlice(rank, ways)
            spec = ModelSpec.of(arch, RankPart(shard))
            found, expected = (
                load_weights(spec, folder, kernels).parameters
                for folder in (ModelFolder(Path(config.target.dir), shard), whole)
            )
            assert found.keys() == expected.keys()
            assert all(found[name].tobytes() == expected[name].tobytes() for name in expected), (ways, rank)


@pytest.mark.parametrize("case", ["gpt2", "llama"])
def test_a_rank_reads_no_more_than_its_slice(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stored as [inputs, outputs] and as [outputs, inputs]; norms and positions are of every rank.

    Of rows as short as these what lies between two parts would be read, too.
    """
    monkeypatch.setattr("mindbatch.checkpoint.formats.floats.GAP_BYTES", 0)
    write_folder(tmp_path, descriptions()[case])
    folder, sizes = ModelFolder(tmp_path), []
    arch, read = describe(folder.config), StoredFile.read_into

    def counted(file: StoredFile, name: str, start: int, buffer: memoryview) -> None:
        sizes.append(buffer.nbytes)
        read(file, name, start, buffer)

    monkeypatch.setattr(StoredFile, "read_into", counted)
    load_weights(ModelSpec.of(arch, RankPart(TensorSlice(1, 2))), folder, choose_kernels("auto", "CPU"))
    parts = {(part.source, part.first): (part, spec) for spec in tensor_specs(arch) for part in spec.parts}
    names, expected = checkpoint_names(arch, folder.names), 0
    for part, spec in parts.values():
        low, high = part.output_bounds(spec.sharding, TensorSlice(1, 2))
        left, right = part.input_bounds(spec.sharding, TensorSlice(1, 2))
        itemsize = folder.info(names(part.source)).itemsize
        expected += (high - low) * (right - left) * itemsize
    assert sum(sizes) == expected < 0.6 * folder.nbytes
