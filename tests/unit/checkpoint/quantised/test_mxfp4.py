"""Folders whose stacks of experts are in MXFP4: read as the floats they stand for, or refused by name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.io.errors import CheckpointError
from mindbatch.kernels.reference import ReferenceKernels
from mindbatch.models.loader import load_weights
from mindbatch.models.model_spec import ModelSpec
from mindbatch.models.quantisation import open_whole
from mindbatch.models.registry import describe, tensor_specs
from mindbatch.models.tensor_spec import source_shapes
from mindbatch.parallel.topology import RankPart, TensorSlice
from small_configs import EXPERTS, LLAMA

SETTINGS = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
CONFIG: dict[str, Any] = (
    LLAMA
    | EXPERTS["gpt_oss"]
    | {"model_type": "gpt_oss", "hidden_size": 64, "intermediate_size": 32, "quantization_config": SETTINGS}
)
STACK = "model.layers.0.mlp.experts.gate_up_proj"  # [4, 64, 64]
Tensors = dict[str, NDArray[Any]]


def value(code: int) -> float:
    """Sign, two bits of exponent with a bias of 1, one of mantissa."""
    sign, exponent, mantissa = code >> 3, code >> 1 & 3, code & 1
    size = mantissa / 2 if exponent == 0 else (1 + mantissa / 2) * 2 ** (exponent - 1)
    return -size if sign else size


def made() -> tuple[Tensors, Tensors]:
    """What a folder stores, and what a model takes of it."""
    generator, stored, floats = np.random.default_rng(3), {}, {}
    for name, shape in source_shapes(tensor_specs(describe(CONFIG))).items():
        if len(shape) < 3:
            stored[name] = floats[name] = generator.standard_normal(shape).astype(np.float32)
            continue
        count, inputs, outputs = shape
        codes = generator.integers(0, 16, (count, outputs, inputs // 32, 32))
        scales = generator.integers(100, 140, (count, outputs, inputs // 32))
        stored[f"{name}_blocks"] = (codes[..., ::2] | codes[..., 1::2] << 4).astype(np.uint8)
        stored[f"{name}_scales"] = scales.astype(np.uint8)
        numbers = np.vectorize(value)(codes) * 2.0 ** (scales - 127)[..., None]
        floats[name] = numbers.reshape(count, outputs, inputs).swapaxes(1, 2).astype(np.float32)
    return stored, floats


def opened(folder: Path, tensors: Tensors, config: dict[str, Any] = CONFIG) -> ModelFolder:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(
        {name: np.ascontiguousarray(each) for name, each in tensors.items()}, folder / "model.safetensors"
    )
    return open_whole(folder, config, "config.json")


@pytest.mark.parametrize("size", [1, 2])
def test_a_rank_has_the_weights_of_a_folder_of_floats(tmp_path: Path, size: int) -> None:
    stored, floats = made()
    arch = describe(CONFIG)
    plain = {key: each for key, each in CONFIG.items() if key != "quantization_config"}
    with opened(tmp_path / "a", stored) as ours, opened(tmp_path / "b", floats, plain) as theirs:
        assert ours.quantised == "MXFP4"
        assert sorted(ours.names) == sorted(theirs.names)
        for rank in range(size):
            piece = TensorSlice(rank, size)
            found, expected = (
                load_weights(ModelSpec.of(arch, RankPart(piece)), each, ReferenceKernels())
                for each in (ours, theirs)
            )
            for name, array in expected.parameters.items():
                np.testing.assert_array_equal(found.parameters[name], array)


def without(tensors: Tensors) -> None:
    del tensors[f"{STACK}_scales"]


def wide(tensors: Tensors) -> None:
    tensors[f"{STACK}_blocks"] = tensors[f"{STACK}_blocks"].astype(np.int32)


def flat(tensors: Tensors) -> None:
    tensors[f"{STACK}_blocks"] = tensors[f"{STACK}_blocks"].reshape(4, 64, 32)


def narrow(tensors: Tensors) -> None:
    tensors[f"{STACK}_blocks"] = tensors[f"{STACK}_blocks"][..., :15]


def short(tensors: Tensors) -> None:
    tensors[f"{STACK}_scales"] = tensors[f"{STACK}_scales"][:, :-1]


def twice(tensors: Tensors) -> None:
    tensors[STACK] = np.zeros((4, 64, 64), np.float32)


def plain(tensors: Tensors) -> None:
    for name in [each for each in tensors if each.endswith(("_blocks", "_scales"))]:
        del tensors[name]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without, "gate_up_proj_scales' is missing; MXFP4 needs it"),
        (wide, "gate_up_proj_blocks' has dtype I32, needed is U8"),
        (flat, "has shape [4, 64, 32]; needed is [matrices, outputs, blocks, 16]"),
        (narrow, "has shape [4, 64, 2, 15], needed is [4, 64, 2, 16]"),
        (short, "has shape [4, 63, 2], needed is [4, 64, 2]"),
        (twice, "gate_up_proj_blocks', too; one of them must go"),
        (plain, "config.json says MXFP4; no tensor is stored so, as *_blocks"),
    ],
)
def test_what_makes_no_stack_is_refused(tmp_path: Path, change: Callable[[Tensors], None], said: str) -> None:
    stored, _ = made()
    change(stored)
    with pytest.raises(CheckpointError) as refused:
        opened(tmp_path, stored)
    assert any(said in fault for fault in refused.value.faults), refused.value.faults


def test_a_scale_that_is_no_number_is_refused(tmp_path: Path) -> None:
    stored, _ = made()
    stored[f"{STACK}_scales"][2, 5, 1] = 255
    with opened(tmp_path, stored) as folder, pytest.raises(CheckpointError, match="matrix 2: exponent 255"):
        load_weights(ModelSpec.of(describe(CONFIG)), folder, ReferenceKernels())
