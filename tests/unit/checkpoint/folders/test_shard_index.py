"""Sharded folders: unsafe file names, and every disagreement between index and shards."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors_writer import safetensors_bytes, write_index, write_shards

from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.checkpoint.folders.weight_files import read_weight_map
from mindbatch.io.errors import CheckpointError

A, B = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
ONE = np.ones(2, np.float32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_shards(tmp_path / "model", {A: {"x": ONE, "y": ONE * 2}, B: {"z": ONE * 3}})


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        ModelFolder(folder)
    assert all("\n" not in fault for fault in caught.value.faults)
    return str(caught.value)


def test_tensors_come_from_their_shards(folder: Path) -> None:
    model = ModelFolder(folder)
    assert model.names == ("x", "y", "z")
    assert model.file_name("z") == B
    assert model.floats("z").tolist() == [3, 3]
    assert model.nbytes == 24


def test_single_file_wins_over_an_index(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(safetensors_bytes({"only": ONE}))
    assert ModelFolder(folder).names == ("only",)


@pytest.mark.parametrize(
    "file",
    [
        "../outside.safetensors",
        "a/../../outside.safetensors",
        "/etc/outside.safetensors",
        "sub/inside.safetensors",
        "..\\outside.safetensors",
        "C:outside.safetensors",
        "a\0.safetensors",
        "a\n.safetensors",
        "pytorch_model.bin",
        "",
        "..",
        7,
        None,
        ["x.safetensors"],
    ],
)
def test_file_name_that_is_not_plain_is_refused(folder: Path, file: object) -> None:
    (folder.parent / "outside.safetensors").write_bytes(safetensors_bytes({"x": ONE}))
    write_index(folder, {"x": file, "y": A, "z": B})
    message = refusal(folder)
    assert "model.safetensors.index.json: weight_map sends tensor 'x' to" in message
    assert "must be the plain name" in message


@pytest.mark.parametrize("weight_map", [None, {}, [], "x", 1])
def test_weight_map_must_be_an_object(folder: Path, weight_map: object) -> None:
    write_index(folder, weight_map)
    assert "weight_map must be an object" in refusal(folder)


def test_index_without_weight_map_or_with_duplicates(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    index.write_text("{}")
    assert "weight_map must be an object" in refusal(folder)
    index.write_text(f'{{"weight_map": {{"x": "{A}", "x": "{B}"}}}}')
    assert "'x' appears twice" in refusal(folder)


def test_shard_that_is_a_link_out_is_refused(folder: Path) -> None:
    (folder / B).rename(folder.parent / "outside.safetensors")
    (folder / B).symlink_to("../outside.safetensors")
    assert f"{folder / B}: symbolic link to" in refusal(folder)


def test_index_that_is_a_link_out_is_refused(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    index.rename(folder.parent / "index.json")
    index.symlink_to("../index.json")
    assert f"{index}: symbolic link to" in refusal(folder)


def test_missing_and_damaged_shards_are_named_together(folder: Path) -> None:
    (folder / A).unlink()
    (folder / B).write_bytes((folder / B).read_bytes()[:-1])
    lines = refusal(folder).splitlines()
    assert lines[0] == f"{folder / A}: missing"
    assert lines[1].startswith(f"{folder / B}: truncated: tensor 'z' ends at byte")
    assert len(lines) == 2


def test_lfs_pointer_shard(folder: Path) -> None:
    (folder / A).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    assert f"{folder / A}: a Git LFS pointer" in refusal(folder)


def test_tensor_of_the_index_that_no_shard_has(folder: Path) -> None:
    write_index(folder, {"x": A, "y": A, "z": B, "w": B})
    assert refusal(folder) == f"{folder}: tensor 'w' is not in {B}, where the index puts it"


def test_tensor_in_another_shard_than_the_index_says(folder: Path) -> None:
    write_index(folder, {"x": A, "y": B, "z": B})
    assert refusal(folder).splitlines() == [
        f"{folder}: tensor 'y' is not in {B}, where the index puts it",
        f"{folder}: tensor 'y' is in {A}, where the index does not put it",
    ]


def test_tensor_of_a_shard_that_the_index_lacks(folder: Path) -> None:
    write_index(folder, {"x": A, "z": B})
    assert refusal(folder) == f"{folder}: tensor 'y' is in {A}, where the index does not put it"


def test_tensor_in_two_shards(folder: Path) -> None:
    (folder / B).write_bytes(safetensors_bytes({"z": ONE, "x": ONE}))
    assert refusal(folder) == f"{folder}: tensor 'x' is in {B}, where the index does not put it"


def test_an_index_of_too_many_files_is_refused_before_they_are_looked_for(tmp_path: Path) -> None:
    weight_map = {f"t{number}": f"{number}.safetensors" for number in range(10_001)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match="weight_map names 10001 files; at most 10000 may be"):
        read_weight_map(tmp_path)
