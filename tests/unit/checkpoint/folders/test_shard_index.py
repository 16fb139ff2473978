"""Indexes of shards, and maps of parts: unsafe file names, and every disagreement with the files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors_writer import safetensors_bytes, write_folder, write_index, write_shards

from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.checkpoint.folders.tensor_set import open_source
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
    assert all("\n" not in fault for fault in caught.value.lines)
    return str(caught.value)


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


@pytest.mark.parametrize(
    ("weight_map", "faults"),
    [
        ({"x": A, "y": A, "z": B, "w": B}, [f"tensor 'w' is not in {B}, where the index puts it"]),
        (
            {"x": A, "y": B, "z": B},
            [
                f"tensor 'y' is not in {B}, where the index puts it",
                f"tensor 'y' is in {A}, where the index does not put it",
            ],
        ),
        ({"x": A, "z": B}, [f"tensor 'y' is in {A}, where the index does not put it"]),
    ],
)
def test_an_index_that_disagrees_with_its_shards(
    folder: Path, weight_map: dict[str, str], faults: list[str]
) -> None:
    write_index(folder, weight_map)
    assert refusal(folder).splitlines() == [f"{folder}: {fault}" for fault in faults]


def test_an_index_of_too_many_files_is_refused_before_they_are_looked_for(tmp_path: Path) -> None:
    weight_map = {f"t{number}": f"{number}.safetensors" for number in range(10_001)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match="weight_map names 10001 files; at most 10000 may be"):
        read_weight_map(tmp_path)


PARTS = {"part0.safetensors": {"b": ONE * 2, "a": ONE}, "part1.safetensors": {"c": ONE * 3}}
WEIGHT_MAP = {name: part for part, tensors in PARTS.items() for name in tensors}


def write_unified(folder: Path, weight_map: object = WEIGHT_MAP, *, bare: bool = False) -> Path:
    """bare: the map alone, as MindFormers writes it."""
    folder.mkdir()
    for part, tensors in PARTS.items():
        (folder / part).write_bytes(safetensors_bytes(tensors))
    content: Any = weight_map if bare else {"metadata": {"total_size": 24}, "weight_map": weight_map}
    (folder / "param_name_map.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("bare", [False, True])
def test_the_tensors_come_from_their_parts(tmp_path: Path, bare: bool) -> None:
    folder = write_unified(tmp_path / "unified", bare=bare)
    (folder / "hyper_param.safetensors").write_bytes(safetensors_bytes({"global_step": ONE}))
    with open_source(folder) as source:
        (tensors,) = source.ranks
        assert (source.kind, [*tensors.tensors], tensors.nbytes) == ("unified", ["b", "a", "c"], 24)
        buffer = bytearray(8)
        tensors.read_into("c", 0, memoryview(buffer))
        assert buffer == (ONE * 3).tobytes()


def test_an_index_of_hugging_face_wins(tmp_path: Path) -> None:
    write_folder(write_unified(tmp_path / "unified"), {"only": ONE})
    with open_source(tmp_path / "unified") as source:
        assert (source.kind, [*source.ranks[0].tensors]) == ("huggingface", ["only"])


@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize(
    ("weight_map", "line"),
    [
        (WEIGHT_MAP | {"c": "../part1.safetensors"}, "weight_map sends tensor 'c' to '../part1.safetensors'"),
        (WEIGHT_MAP | {"c": 3}, "weight_map sends tensor 'c' to 3; must be the plain name"),
        (WEIGHT_MAP | {"a": "part1.safetensors"}, "in part0.safetensors, where the index does not put it"),
        ({}, "weight_map must be an object of tensor names and file names"),
    ],
)
def test_a_map_is_read_as_strictly_as_an_index(
    tmp_path: Path, weight_map: object, line: str, bare: bool
) -> None:
    folder = write_unified(tmp_path / "unified", weight_map, bare=bare)
    with pytest.raises(CheckpointError) as caught:
        open_source(folder)
    assert line in str(caught.value)
    assert str(folder) in str(caught.value)
