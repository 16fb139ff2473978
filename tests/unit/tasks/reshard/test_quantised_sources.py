"""Folders with quantised weights, and llama.cpp's files, are written as floats, whole or cut for ranks."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.checkpoint.formats.floats import converted
from mindbatch.checkpoint.gguf.unpacked import gguf_paths, unpacked
from mindbatch.config_json.quantisation import open_quantised
from mindbatch.io.errors import ConfigError
from mindbatch.parallel.topology import TensorSlice
from quantised_folders import METHODS, sample
from reshard_adapters import reshard
from small_configs import LLAMA

GGUF_FILES = Path(__file__).parents[2] / "checkpoint/gguf/written"


def rounded(floats: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    narrow, _ = converted(floats, "F32", dtype)
    return converted(narrow, dtype, "F32")[0]


@pytest.mark.parametrize("method", METHODS)
def test_the_target_has_the_floats_that_are_stood_for(tmp_path: Path, method: str) -> None:
    made = sample(method, LLAMA)
    reshard(made.write(tmp_path / "source"), tmp_path / "target", target_dtype="bfloat16", verify=True)
    config = json.loads((tmp_path / "target/config.json").read_bytes())
    assert "quantization_config" not in config
    assert not [*(tmp_path / "target").glob("*quant*")]
    with ModelFolder(tmp_path / "target") as folder:
        assert {info.dtype for info in folder.tensors.values()} == {"BF16"}
        assert sorted(folder.names) == sorted(made.floats)
        for name, floats in made.floats.items():
            np.testing.assert_array_equal(folder.floats(name), rounded(floats, "BF16"))


@pytest.mark.parametrize("name", ["llama3", "qwen3_moe", "gemma3", "gpt_oss", "deepseek_v3"])
def test_a_file_of_llama_cpp_is_written_as_a_folder(tmp_path: Path, name: str) -> None:
    home = unpacked(gguf_paths(GGUF_FILES / f"{name}.gguf"), tmp_path / "cache")
    reshard(home, tmp_path / "target", target_dtype="float32", verify=True)
    assert (tmp_path / "target/tokenizer.json").read_bytes() == (home / "tokenizer.json").read_bytes()
    source = open_quantised(home)
    assert source is not None
    with source, ModelFolder(tmp_path / "target") as folder:
        assert folder.config == source.config
        for key in source.names:
            np.testing.assert_array_equal(folder.floats(key), source.floats(key))


def test_ranks_are_cut_of_the_floats(tmp_path: Path) -> None:
    made = sample("fp8", LLAMA)
    options = {"target_dtype": "float32", "target_model_parallel": 2, "verify": "logits", "workers": 3}
    reshard(made.write(tmp_path / "source"), tmp_path / "target", **options)
    name = "model.layers.0.mlp.down_proj.weight"
    with ModelFolder(tmp_path / "target", TensorSlice(1, 2)) as folder:
        np.testing.assert_array_equal(folder.floats(name), made.floats[name][:, 24:])


def test_they_are_not_kept_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"target.dtype=keep: .* is stored as GPTQ, 4 bits.* allowed: float32"
    ):
        reshard(sample("gptq", LLAMA).write(tmp_path / "source"), tmp_path / "target", [])
