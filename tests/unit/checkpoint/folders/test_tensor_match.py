"""match_tensors names every tensor that is missing, not wanted or of the wrong shape or kind, at once."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from safetensors_writer import write_folder

from mindbatch.checkpoint.folders.model_folder import ModelFolder, match_tensors

SHAPES = {"embed.weight": (4, 2), "layers.0.q_proj.weight": (2, 2), "norm.weight": (2,)}


def model(folder: Path, shapes: Mapping[str, tuple[int, ...]], dtype: type = np.float32) -> ModelFolder:
    return ModelFolder(write_folder(folder, {name: np.zeros(shape, dtype) for name, shape in shapes.items()}))


def test_a_fitting_folder_has_no_faults(tmp_path: Path) -> None:
    assert match_tensors(SHAPES, model(tmp_path, SHAPES)) == []


def test_all_kinds_of_fault_come_at_once(tmp_path: Path) -> None:
    found = {"embed.weight": (2, 4), "layers.0.query_proj.weight": (2, 2), "norm.weight": (2,), "zzz": ()}
    file = tmp_path / "model.safetensors"
    assert match_tensors(SHAPES, model(tmp_path, found)) == [
        f"{file}: tensor 'embed.weight' has shape [2, 4], needed is [4, 2]",
        f"{tmp_path}: tensor 'layers.0.q_proj.weight' is missing; needed with shape [2, 2]",
        f"{file}: tensor 'layers.0.query_proj.weight' of shape [2, 2] is not part of this model"
        "; did you mean 'layers.0.q_proj.weight'?",
        f"{file}: tensor 'zzz' of shape [] is not part of this model",
    ]


@pytest.mark.parametrize("dtype", [np.int8, np.float64])
def test_dtype_that_cannot_be_read_as_float32(tmp_path: Path, dtype: type) -> None:
    faults = match_tensors({"w": (3,)}, model(tmp_path, {"w": (2,)}, dtype))
    assert len(faults) == 1
    assert "has shape [2], needed is [3]; has dtype" in faults[0]
    assert "needed is one of F32, F16, BF16" in faults[0]


def test_optional_tensors_may_be_there(tmp_path: Path) -> None:
    folder = model(tmp_path, {**SHAPES, "layers.7.attn.bias": (1, 1), "rotary.inv_freq": (3,)})
    assert match_tensors(SHAPES, folder, ["layers.*.attn.bias", "rotary.inv_freq"]) == []
    assert len(match_tensors(SHAPES, folder, ["layers.*.attn.bia", "Rotary.inv_freq"])) == 2


def test_a_near_name_of_another_shape_is_not_suggested(tmp_path: Path) -> None:
    faults = match_tensors({"proj.weight": (2, 2)}, model(tmp_path, {"proj.weights": (2,)}))
    assert len(faults) == 2
    assert "did you mean" not in faults[1]


def test_long_lists_are_shortened_by_kind(tmp_path: Path) -> None:
    found = {f"a{i}": (1,) for i in range(100)}
    wanted = {f"b{i}": (1,) for i in range(50)}
    lines = match_tensors(wanted, model(tmp_path, found))
    assert len(lines) == 12
    assert lines[5] == "... and 45 more missing tensors"
    assert lines[11] == "... and 95 more unexpected tensors"
    alone = match_tensors({}, model(tmp_path / "other", found))
    assert len(alone) == 11
    assert alone[-1] == "... and 90 more unexpected tensors"
