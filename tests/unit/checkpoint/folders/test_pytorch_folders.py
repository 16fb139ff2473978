"""Folders with PyTorch's files alone: opened as others are, by every use."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from adapter_folders import write_full_adapter

from mindbatch.checkpoint.folders.digests import record_digests
from mindbatch.checkpoint.folders.model_folder import ModelFolder, is_cut
from mindbatch.checkpoint.formats.open_file import open_tensor_file
from mindbatch.checkpoint.lora.adapter import open_adapter
from mindbatch.io.errors import CheckpointError
from pytorch_bytes import old_pytorch_bytes, pytorch_bytes
from verified_sources import open_verified

INDEX = "pytorch_model.bin.index.json"
ARRAYS = {
    "a.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b.weight": np.arange(4, dtype=np.float16),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    return tmp_path


def _write_shards(folder: Path) -> None:
    for name, array in ARRAYS.items():
        (folder / f"{name[0]}.bin").write_bytes(pytorch_bytes({name: array}))
    weight_map = {name: f"{name[0]}.bin" for name in ARRAYS}
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 32}, "weight_map": weight_map}))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "full_sft_768.pth", INDEX])
def test_is_a_model_folder(folder: Path, name: str) -> None:
    if name == INDEX:
        _write_shards(folder)
    else:
        (folder / name).write_bytes(pytorch_bytes(ARRAYS))
    for unread in ("training_args.bin", "optimizer.pt", "rng_state.pth"):
        (folder / unread).write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    record_digests(folder)
    with ModelFolder(folder) as model:
        assert not is_cut(folder)
        for each, array in ARRAYS.items():
            np.testing.assert_array_equal(model.floats(each), array)
    with open_verified(folder) as source:
        assert source.kind == "huggingface"


def test_safetensors_win(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"x")
    (folder / "model.safetensors").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: truncated"):
        ModelFolder(folder)


def test_several_of_other_names_are_refused(folder: Path) -> None:
    for name in ("pretrain_768.pth", "full_sft_768.pth"):
        (folder / name).write_bytes(pytorch_bytes(ARRAYS))
    with pytest.raises(CheckpointError, match=r"only full_sft_768\.pth, pretrain_768\.pth; needed is"):
        ModelFolder(folder)


@pytest.mark.parametrize("write", [pytorch_bytes, old_pytorch_bytes])
def test_an_adapter(tmp_path: Path, write) -> None:
    write_full_adapter(tmp_path)
    kept = open_adapter(tmp_path)
    stored = tmp_path / "adapter_model.safetensors"
    with open_tensor_file(stored) as file:
        arrays = {}
        for name, info in file.tensors.items():
            arrays[name] = np.zeros(info.shape, np.float32)
            file.read_into(name, 0, arrays[name].data.cast("B"))
    (tmp_path / "adapter_model.bin").write_bytes(write(arrays))
    assert open_adapter(tmp_path).digest == kept.digest
    stored.unlink()
    (tmp_path / "digests.json").unlink(missing_ok=True)
    assert open_adapter(tmp_path).digest == kept.digest
