"""Folders of parts with param_name_map.json, of MindSpore or MindFormers, read as strictly as an index."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors_writer import safetensors_bytes, write_folder

from mindbatch.checkpoint.folders.tensor_set import open_source
from mindbatch.io.errors import CheckpointError

ONE = np.ones(2, np.float32)
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
        (
            WEIGHT_MAP | {"c": "../part1.safetensors"},
            "weight_map sends tensor 'c' to '../part1.safetensors'; must be the plain name",
        ),
        (WEIGHT_MAP | {"c": 3}, "weight_map sends tensor 'c' to 3; must be the plain name"),
        (WEIGHT_MAP | {"d": "part1.safetensors"}, "tensor 'd' is not in part1.safetensors, where the index"),
        (WEIGHT_MAP | {"a": "part1.safetensors"}, "in part0.safetensors, where the index does not put it"),
        (WEIGHT_MAP | {"c": "part2.safetensors"}, "part2.safetensors"),
        ({"a": "part0.safetensors"}, "tensor 'b' is in part0.safetensors, where the index does not"),
        ({}, "weight_map must be an object of tensor names and file names"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, weight_map: object, line: str, bare: bool) -> None:
    folder = write_unified(tmp_path / "unified", weight_map, bare=bare)
    with pytest.raises(CheckpointError) as caught:
        open_source(folder)
    assert line in str(caught.value)
    assert str(folder) in str(caught.value)


def test_a_part_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = write_unified(tmp_path / "unified")
    (folder / "part1.safetensors").rename(tmp_path / "outside.safetensors")
    (folder / "part1.safetensors").symlink_to(tmp_path / "outside.safetensors")
    with pytest.raises(CheckpointError, match="part1.safetensors"):
        open_source(folder)
