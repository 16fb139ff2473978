"""MindFormers' Checkpoint 2.0, as MindFormers has written it: read, cut anew, refused when damaged."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapter_folders import write_adapter

from iteration_folders import CASES, CONFIG, PACKED, expected_tensors, unpacked_iterations
from mindbatch.backends import native
from mindbatch.backends.merged_adapter import merge_native
from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.checkpoint.folders.tensor_set import open_source
from mindbatch.checkpoint.iterations.folder import IterationFolder
from mindbatch.checkpoint.iterations.metadata import placements
from mindbatch.checkpoint.lora.adapter import open_adapter
from mindbatch.config_json.reader import NONE_IGNORED
from mindbatch.io.errors import CheckpointError
from mindbatch.parallel.topology import WHOLE_MODEL
from mindbatch.tasks.reshard import task
from mindbatch.tasks.reshard.schema import ReshardConfig, ReshardTargetConfig

SHARDED = "qwen3-model-0000001-0000002.safetensors"
QKV = "decoder.layers.0.self_attention.linear_qkv.weight"


@pytest.fixture(scope="module", params=PACKED)
def iterations(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked_iterations(tmp_path_factory.mktemp("iterations"), request.param)


def reshard(source: Path, target: Path, **options: Any) -> Path:
    target_config = ReshardTargetConfig(dir=str(target), **options)
    assert task.run(ReshardConfig(source=str(source), verify=True, target=target_config)) == 0
    return target


def assert_holds(folder: ModelFolder, expected: dict[str, Any]) -> None:
    assert {*folder.names} == expected.keys()
    for name, values in expected.items():
        assert np.array_equal(folder.floats(name), values), name
        rows = slice(1, max(2, len(values) // 2))
        assert np.array_equal(folder.floats(name, rows=rows), values[rows])
        if values.ndim == 2:
            assert np.array_equal(folder.floats(name, columns=slice(3, 9)), values[:, 3:9])


@pytest.mark.parametrize("case", CASES)
def test_it_is_a_model_folder_with_the_values_that_were_saved(case: str, iterations: Path) -> None:
    home = iterations / case
    folder, spec = native.open_folder(home, "auto", NONE_IGNORED, WHOLE_MODEL)
    with folder:
        assert isinstance(folder, IterationFolder)
        assert spec.architecture.model_type == "qwen3"
        assert folder.nbytes == sum(folder.info(name).nbytes for name in folder.names)
        assert_holds(folder, expected_tensors(home))


@pytest.mark.parametrize("case", CASES)
def test_a_reshard_reads_it(case: str, iterations: Path, tmp_path: Path) -> None:
    with ModelFolder(reshard(iterations / case, tmp_path / "whole")) as folder:
        assert_holds(folder, expected_tensors(iterations / case))


@pytest.mark.parametrize("case", ["b", "c"])
def test_an_adapter_with_norms_merges_into_it_as_into_one_file(
    case: str, iterations: Path, tmp_path: Path
) -> None:
    """DoRA reads whole rows, of tensors that are fused, and cut by rows and by columns."""
    chance, arrays = np.random.default_rng(3), {}
    whole = reshard(iterations / case, tmp_path / "whole")
    with ModelFolder(whole) as folder:
        for name in folder.names:
            if name.endswith(("q_proj.weight", "o_proj.weight", "down_proj.weight")):
                outputs, inputs = folder.info(name).shape
                module = f"base_model.model.{name.removesuffix('.weight')}"
                arrays[f"{module}.lora_A.weight"] = chance.normal(size=(2, inputs)).astype(np.float32)
                arrays[f"{module}.lora_B.weight"] = chance.normal(size=(outputs, 2)).astype(np.float32)
                arrays[f"{module}.lora_magnitude_vector"] = chance.normal(size=outputs).astype(np.float32)
    targets = ["q_proj", "o_proj", "down_proj"]
    adapter = open_adapter(write_adapter(tmp_path / "a", arrays, target_modules=targets, use_dora=True))
    merged = []
    for home in (iterations / case, whole):
        folder, spec = native.open_folder(home, "auto", NONE_IGNORED, WHOLE_MODEL)
        with folder, merge_native(spec.architecture, folder, adapter) as weights:
            merged.append({name: weights.floats(name) for name in sorted(weights.names)})
    assert merged[0].keys() == merged[1].keys()
    for name, values in merged[0].items():
        np.testing.assert_array_equal(values, merged[1][name], name)


@pytest.mark.parametrize("ranks", [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_what_is_written_so_is_read_as_it_was(
    ranks: tuple[int, int], iterations: Path, tmp_path: Path
) -> None:
    """MindFormers' own loader takes these folders: see docs/mindformers.md."""
    sizes = {"model_parallel": ranks[0], "pipeline_stage": ranks[1]}
    cut = reshard(iterations / "b", tmp_path / "cut", format="iteration", names="mcore", **sizes)
    assert (cut / "latest_checkpointed_iteration.txt").read_text() == "0"
    with ModelFolder(reshard(cut, tmp_path / "whole")) as folder:
        assert_holds(folder, expected_tensors(iterations / "b"))


def test_its_description_is_mindformers_own(iterations: Path, tmp_path: Path) -> None:
    """But for the names of files, and what was not cut so: MindFormers keeps the vocabulary's halves too."""
    cut = reshard(iterations / "b", tmp_path / "cut", format="iteration", names="mcore", model_parallel=2)
    ours = json.loads((cut / "iteration_00000000/metadata.json").read_text())
    theirs = json.loads((iterations / "b/iteration_00000020/metadata.json").read_text())
    plain = json.dumps(theirs["storage_data"]).replace("qwen3-model", "model")
    for name, entries in json.loads(plain).items():
        assert [{key: entry[key] for key in ("file_name", "storage_rank")} for entry in entries] == [
            {key: entry[key] for key in ("file_name", "storage_rank")} for entry in ours["storage_data"][name]
        ]
    assert ours["state_dict_metadata"] == theirs["state_dict_metadata"]


def test_more_ranks_than_fused_heads_are_refused(iterations: Path, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="names=mcore: model_parallel=4 is above the 2 key/value heads"):
        reshard(iterations / "b", tmp_path / "cut", format="iteration", names="mcore", model_parallel=4)


Change = Callable[[dict[str, Any]], object]
DAMAGE: dict[str, tuple[Change, str]] = {
    "a piece without a file": (
        lambda content: content["storage_data"].pop(f"('{QKV}', (1,))"),
        "fragment 1 of 2 is in no file",
    ),
    "a tensor that is not described": (
        lambda content: content["state_dict_metadata"].pop(QKV),
        "is stored, and state_dict_metadata has it not",
    ),
    "a file that is not there": (
        lambda content: content["storage_data"][f"('{QKV}', (1,))"][0].update(
            file_name="qwen3-model-0000007-0000009.safetensors"
        ),
        "is in 'qwen3-model-0000007-0000009.safetensors', which does not exist",
    ),
    "pieces the wrong way round": (
        lambda content: content["storage_data"][f"('{QKV}', (1,))"][0].update(storage_rank=0),
        "by its layout rank 0 has",
    ),
    "pieces that do not divide": (
        lambda content: content["state_dict_metadata"][QKV].update(axis_fragmentations=[3, 1]),
        "axis_fragmentations [3, 1] do not divide the shape [64, 32]",
    ),
    "another shape": (
        lambda content: content["state_dict_metadata"][QKV].update(global_shape=[128, 32]),
        "has shape [32, 32] in 'qwen3-model-0000000-0000002.safetensors'; the fragment is",
    ),
    "another dtype": (
        lambda content: content["state_dict_metadata"][QKV]["properties"].update(dtype="BFloat16"),
        "is F32 in 'qwen3-model-0000000-0000002.safetensors', and BF16 here",
    ),
    "an axis that the mesh has not": (
        lambda content: content["state_dict_metadata"][QKV]["layout"].update(tensor_map=[9, -1]),
        "tensor map [9, -1] must hold axes below 3",
    ),
    "nothing": (
        lambda content: content.clear(),
        "must have the objects state_dict_metadata and storage_data",
    ),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_what_contradicts_itself_is_refused_by_name(case: str, tmp_path: Path) -> None:
    path = unpacked_iterations(tmp_path) / "b/iteration_00000020/metadata.json"
    change, line = DAMAGE[case]
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with open_source(tmp_path / "b") as source, pytest.raises(CheckpointError) as error:
        placements(source.path, source.ranks)
    assert any(problem.startswith(f"{path}: ") and line in problem for problem in error.value.lines)


TORN: dict[str, tuple[Callable[[Path], object], str]] = {
    "a file of weights": (
        lambda home: (home / "iteration_00000020" / SHARDED).unlink(),
        "has 1 of the 2 files of weights that their names speak of",
    ),
    "the description": (
        lambda home: (home / "iteration_00000020/metadata.json").unlink(),
        "2 files of weights and no metadata.json, which says how they fit",
    ),
    "the iteration": (
        lambda home: (home / "latest_checkpointed_iteration.txt").write_text("21"),
        "names iteration 21, and there is no iteration_00000021",
    ),
    "its number": (
        lambda home: (home / "latest_checkpointed_iteration.txt").write_text("../20"),
        "holds '../20'; must be the number of an iteration",
    ),
    "the tracker": (
        lambda home: (home / "latest_checkpointed_iteration.txt").unlink(),
        "has iterations and no latest_checkpointed_iteration.txt that says which of them is whole",
    ),
    "the base of an adapter": (
        lambda home: (home / "iteration_00000020/mindformers_adapter_config.json").write_text("{}"),
        "holds an adapter alone",
    ),
}


@pytest.mark.parametrize("case", TORN)
def test_what_is_torn_is_refused(case: str, tmp_path: Path) -> None:
    home = unpacked_iterations(tmp_path) / "b"
    tear, line = TORN[case]
    tear(home)
    with pytest.raises(CheckpointError) as error:
        open_source(home)
    assert line in str(error.value)


def test_an_iteration_itself_and_a_type_without_such_names(tmp_path: Path) -> None:
    home = unpacked_iterations(tmp_path) / "b"
    (home / "latest_checkpointed_iteration.txt").unlink()
    with ModelFolder(reshard(home / "iteration_00000020", tmp_path / "whole")) as folder:
        assert_holds(folder, expected_tensors(home))
    (home / "latest_checkpointed_iteration.txt").write_text("20")
    (home / "config.json").write_text(json.dumps(CONFIG | {"model_type": "llama"}))
    with pytest.raises(Exception, match="Mcore names of model type 'llama' are not known; allowed: qwen3"):
        native.open_folder(home, "auto", NONE_IGNORED, WHOLE_MODEL)
